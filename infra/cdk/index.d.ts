import type { IGrantable } from 'aws-cdk-lib/aws-iam';
import { Construct } from 'constructs';

/**
 * A property per parameter of the template, in its words and with its defaults; a test compares them.
 * The values of tokens are not known when they are needed: use literals.
 */
export interface ZaeLimiterProps {
  /**
   * The zip that `zae-limiter lambda-export` writes. It becomes an asset; without it, the stack has
   * everything but the function, its event source and its alarms.
   */
  readonly lambdaZip?: string;
  /** Usage is counted by these windows (hourly, daily, monthly), separated by commas. @default hourly,daily */
  readonly snapshotWindows?: string;
  /** Usage is kept for this many days. @default 90 */
  readonly snapshotRetentionDays?: number;
  /** Upkeep splits a hot bucket into at most so many shards; 1 never splits. @default 32 */
  readonly shardsMax?: number;
  /** Shards of quiet buckets are folded; false while clients of the Python package write. @default true */
  readonly enableFolding?: boolean;
  /** What GSI2 keeps (ALL for fleets with readers of the Python package); cannot be changed later. @default KEYS_ONLY */
  readonly resourceIndexProjection?: 'KEYS_ONLY' | 'ALL';
  /** Whether a function counts usage from the stream. @default true */
  readonly enableAggregator?: boolean;
  /** The processor that the function's code is built for. @default x86_64 */
  readonly architecture?: 'x86_64' | 'arm64';
  /** The zip in the code bucket, named by its SHA-256; empty in the first step. @default '' */
  readonly lambdaCodeKey?: string;
  /** Memory of the function in MB. @default 256 */
  readonly lambdaMemorySize?: number;
  /** The function is stopped after this many seconds. @default 60 */
  readonly lambdaTimeout?: number;
  /** The alarm on the function's duration rings above this many milliseconds. @default 48000 */
  readonly lambdaDurationThreshold?: number;
  /** Logs are kept for this many days. @default 30 */
  readonly logRetentionDays?: number;
  /** Whether X-Ray traces the function. @default false */
  readonly enableTracing?: boolean;
  /** Point-in-time recovery reaches back so many days (1 to 35); empty for 35. @default '' */
  readonly pitrRecoveryPeriodDays?: string;
  /** Whether the table refuses to be deleted. @default false */
  readonly enableDeletionProtection?: boolean;
  /** Whether CloudWatch Contributor Insights shows the hottest keys of the table. @default false */
  readonly enableContributorInsights?: boolean;
  /** Whether alarms are made. @default true */
  readonly enableAlarms?: boolean;
  /** Alarms are sent to this SNS topic; empty for nobody. @default '' */
  readonly alarmSnsTopicArn?: string;
  /** Whether audit events that expire are archived in S3. @default true */
  readonly enableAuditArchival?: boolean;
  /** Archived events move to Glacier Instant Retrieval after this many days. @default 90 */
  readonly auditArchiveGlacierTransitionDays?: number;
  /** What `zae-limiter delete` does with the archive; CloudFormation itself always keeps it. @default retain */
  readonly archiveOnDelete?: 'retain' | 'empty';
  /** Whether policies and roles are made. @default true */
  readonly enableIam?: boolean;
  /** Whether roles for applications, administrators and readers are made. @default false */
  readonly enableIamRoles?: boolean;
  /** A role of your own for the function; empty for one of the stack. @default '' */
  readonly aggregatorRoleArn?: string;
  /** The ARN of the permission boundary of all roles; empty for none. @default '' */
  readonly permissionBoundary?: string;
  /** The same by the name of a policy of this account; PermissionBoundary counts first. @default '' */
  readonly permissionBoundaryName?: string;
  /** The format that the names of roles were made by, for other stacks to read. @default '' */
  readonly roleNameFormat?: string;
  /** Empty for STACK-aggr. @default '' */
  readonly aggregatorRoleName?: string;
  /** Empty for STACK-app. @default '' */
  readonly appRoleName?: string;
  /** Empty for STACK-admin. @default '' */
  readonly adminRoleName?: string;
  /** Empty for STACK-read. @default '' */
  readonly readOnlyRoleName?: string;
  /** Empty for STACK-acq. @default '' */
  readonly acquireOnlyPolicyName?: string;
  /** Empty for STACK-full. @default '' */
  readonly fullAccessPolicyName?: string;
  /** Empty for STACK-read. @default '' */
  readonly readOnlyPolicyName?: string;
  /** Empty for STACK-reg. @default '' */
  readonly registryAdminPolicyName?: string;
  /** Empty for STACK-ns-acq. @default '' */
  readonly namespaceAcquirePolicyName?: string;
  /** Empty for STACK-ns-full. @default '' */
  readonly namespaceFullAccessPolicyName?: string;
  /** Empty for STACK-ns-read. @default '' */
  readonly namespaceReadOnlyPolicyName?: string;
}

/**
 * The limiter: the template of zae-limiter in a stack, whose name is the name of the limiter and of
 * its table. One in a stack, which may have other resources too.
 */
export class ZaeLimiter extends Construct {
  readonly tableName: string;
  readonly tableArn: string;
  readonly tableStreamArn: string;

  constructor(scope: Construct, id: string, props?: ZaeLimiterProps);

  // Each attaches a managed policy of the stack; docs/deploy.md says what it allows. The grantee's
  // principal is a role, a user or a group that this program makes: anything else is an error, since
  // CDK would forget the policy.

  /** Takes, looks and settles in every namespace. */
  grantAcquire(grantee: IGrantable): void;
  /** Everything in every namespace; not the registry. */
  grantFullAccess(grantee: IGrantable): void;
  /** Reads every namespace. */
  grantReadOnly(grantee: IGrantable): void;
  /** Writes the registry of namespaces; goes with `grantFullAccess`. */
  grantRegistryAdmin(grantee: IGrantable): void;
  /** Takes in the namespace of the principal's tag `zael_namespace_id`. */
  grantNamespaceAcquire(grantee: IGrantable): void;
  /** Everything in that namespace. */
  grantNamespaceFullAccess(grantee: IGrantable): void;
  /** Reads that namespace. */
  grantNamespaceReadOnly(grantee: IGrantable): void;
}
