// The example of the README; `npm test` checks its types.
import { App, Stack } from 'aws-cdk-lib';
import { Role, ServicePrincipal } from 'aws-cdk-lib/aws-iam';
import { ZaeLimiter } from './index';

const app = new App();
const stack = new Stack(app, 'my-app');
const limiter = new ZaeLimiter(stack, 'Limiter', {
  lambdaZip: 'lambda.zip',
  architecture: 'arm64',
  enableDeletionProtection: true,
  snapshotRetentionDays: 30,
});
const role = new Role(stack, 'Service', { assumedBy: new ServicePrincipal('ecs-tasks.amazonaws.com') });
limiter.grantAcquire(role);
