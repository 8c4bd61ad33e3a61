'use strict';

const { createHash } = require('node:crypto');
const { readFileSync } = require('node:fs');
const { join } = require('node:path');
const { App, CfnParameter, Stack, Token, Validations } = require('aws-cdk-lib');
const iam = require('aws-cdk-lib/aws-iam');
const { Asset } = require('aws-cdk-lib/aws-s3-assets');
const { CfnInclude } = require('aws-cdk-lib/cloudformation-include');
const { Construct } = require('constructs');

const TEMPLATE = join(__dirname, 'template.yaml');

/** The rule of `zae-limiter` for names of stacks. */
const STACK_NAME = /^[A-Za-z][A-Za-z0-9-]{2,52}$/;

/** Properties that are no parameters of the template. */
const OWN_PROPS = ['lambdaZip'];

/** AlarmSNSTopicArn -> alarmSnsTopicArn. */
function camel(name) {
  const words = name.split(/(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])/);
  const title = (word) => word[0].toUpperCase() + word.slice(1).toLowerCase();
  return words[0].toLowerCase() + words.slice(1).map(title).join('');
}

/**
 * The parameters of the template, which has their bounds.
 * @returns {CfnParameter[]}
 */
function parameters() {
  const include = new CfnInclude(new Stack(new App(), 'Parameters'), 'Include', {
    templateFile: TEMPLATE,
  });
  return include.node.findAll().filter((child) => child instanceof CfnParameter);
}

/**
 * What is wrong with a value, if anything. CloudFormation would look at the bounds of a parameter;
 * CDK puts the value in the place of the parameter.
 * @param {CfnParameter} parameter
 */
function problem(parameter, value) {
  const { allowedPattern, allowedValues, maxLength, maxValue, minValue, type } = parameter;
  if (Token.isUnresolved(value)) {
    return 'is known only when the stack is made, and conditions need it before; use a literal';
  }
  if (isSwitch(parameter)) {
    return typeof value === 'boolean' ? undefined : 'use true or false';
  }
  const kind = type === 'Number' ? 'number' : 'string';
  if (typeof value !== kind) {
    return `use a ${kind}`;
  }
  if (allowedValues && !allowedValues.map(String).includes(String(value))) {
    return `use one of ${allowedValues.join(', ')}`;
  }
  if (kind === 'number' && !Number.isInteger(value)) {
    return 'use a whole number';
  }
  if (value < minValue || value > maxValue) {
    return `use ${minValue} to ${maxValue}`;
  }
  if (allowedPattern && !new RegExp(allowedPattern).test(value)) {
    return `use what matches ${allowedPattern}`;
  }
  if (value.length > maxLength) {
    return `use at most ${maxLength} characters`;
  }
  return undefined;
}

/** @param {CfnParameter} parameter */
function isSwitch(parameter) {
  return parameter.allowedValues?.join() === 'true,false';
}

/** A rule of CDK for templates that is not to be applied. */
function rule(number) {
  const reason = 'The template of zae-limiter is used as it is, with values instead of parameters';
  return { id: `CloudFormation-Validate::${number}`, reason };
}

/** A stack of zae-limiter; index.d.ts documents what is public. */
class ZaeLimiter extends Construct {
  constructor(scope, id, props = {}) {
    super(scope, id);
    const stack = Stack.of(this);
    if (stack.nested || !STACK_NAME.test(stack.stackName)) {
      throw new Error(
        `stack ${stack.stackName}: the limiter and its table take the name of the stack; use one that ` +
          'is not nested, with a letter, then letters, digits and -, 3 to 53 characters in all',
      );
    }
    const { lambdaZip, ...options } = props;
    if (lambdaZip !== undefined) {
      if (options.lambdaCodeKey !== undefined) {
        throw new Error('lambdaZip and lambdaCodeKey name the code twice; use one of them');
      }
      const digest = createHash('sha256').update(readFileSync(lambdaZip)).digest('hex');
      options.lambdaCodeKey = `${digest}.zip`;
    }
    if (options.enableIamRoles && options.enableIam === false) {
      throw new Error('enableIamRoles needs enableIam; allow both, or neither');
    }
    /** @private */
    this.enableIam = options.enableIam !== false;
    /** @private */
    this.include = new CfnInclude(this, 'Template', {
      templateFile: TEMPLATE,
      parameters: this.values(options),
    });

    if (lambdaZip !== undefined) {
      const asset = new Asset(this, 'Code', { path: lambdaZip });
      this.include.getResource('AggregatorFunction').code = {
        s3Bucket: asset.s3BucketName,
        s3Key: asset.s3ObjectKey,
      };
    }

    this.acknowledge(stack);

    // `zae-limiter list` finds the stack by these. They are of the stack only: CloudFormation gives
    // them to its resources.
    stack.tags.setTag('ManagedBy', 'zae-limiter');
    stack.tags.setTag('zae-limiter:name', stack.stackName);
    stack.tags.setTag('zae-limiter:type', 'limiter');

    const table = this.include.getResource('RateLimitsTable');
    this.tableName = table.ref;
    this.tableArn = table.attrArn;
    this.tableStreamArn = table.attrStreamArn;
  }

  /**
   * A value for every parameter: a parameter that stays in the template keeps the value it had when
   * the stack is updated, whatever the program says.
   * @private
   */
  values(options) {
    const known = parameters();
    const names = known.map((parameter) => camel(parameter.node.id));
    const unknown = Object.keys(options).filter((name) => !names.includes(name));
    if (unknown.length > 0) {
      const all = [...names, ...OWN_PROPS].sort().join(', ');
      throw new Error(`there is no property ${unknown.join(', ')}; there are: ${all}`);
    }
    const values = {};
    for (const parameter of known) {
      const name = camel(parameter.node.id);
      const given = options[name];
      if (given !== undefined) {
        const wrong = problem(parameter, given);
        if (wrong !== undefined) {
          throw new Error(`${name} ${JSON.stringify(given)}: ${wrong}`);
        }
      }
      const value = given ?? parameter.default;
      values[parameter.node.id] = isSwitch(parameter) ? String(value) : value;
    }
    return values;
  }

  /**
   * Warnings that tell nothing: with values in the place of parameters every condition is constant.
   * Those on conditions and outputs are the stack's, so there they are switched off for all of it.
   * @private
   */
  acknowledge(stack) {
    // A branch that cannot be reached; a condition that is always the same, or the same as another.
    Validations.of(stack).acknowledge(rule('W1028'), rule('W8003'), rule('W9053'));
    // An empty key, of a function that is not made without one.
    Validations.of(this.include.getResource('AggregatorFunction')).acknowledge(rule('F3033'));
    // Days of recovery as a text: a parameter that may be empty is no number.
    Validations.of(this.include.getResource('RateLimitsTable')).acknowledge(rule('W9003'));
  }

  /** @private */
  attach(logicalId, grantee) {
    if (!this.enableIam) {
      throw new Error(`${logicalId} is not there: enableIam is false`);
    }
    const principal = grantee.grantPrincipal;
    // Other principals, imported ones above all, take a managed policy and forget it.
    const takes = [iam.LazyRole, iam.User, iam.Group].some((kind) => principal instanceof kind);
    if (!takes && !iam.Role.isRole(principal)) {
      throw new Error(
        `${logicalId} can be attached to roles, users and groups of this program only; attach the ` +
          `policy of output ${logicalId}Arn to ${principal} where that is made`,
      );
    }
    // The policy depends on a condition that holds.
    Validations.of(principal).acknowledge(rule('W1001'));
    const arn = this.include.getResource(logicalId).ref;
    principal.addManagedPolicy(
      this.node.tryFindChild(logicalId) ??
        iam.ManagedPolicy.fromManagedPolicyArn(this, logicalId, arn),
    );
  }

  grantAcquire(grantee) {
    this.attach('AcquireOnlyPolicy', grantee);
  }

  grantFullAccess(grantee) {
    this.attach('FullAccessPolicy', grantee);
  }

  grantReadOnly(grantee) {
    this.attach('ReadOnlyPolicy', grantee);
  }

  grantRegistryAdmin(grantee) {
    this.attach('RegistryAdminPolicy', grantee);
  }

  grantNamespaceAcquire(grantee) {
    this.attach('NamespaceAcquirePolicy', grantee);
  }

  grantNamespaceFullAccess(grantee) {
    this.attach('NamespaceFullAccessPolicy', grantee);
  }

  grantNamespaceReadOnly(grantee) {
    this.attach('NamespaceReadOnlyPolicy', grantee);
  }
}

module.exports = { ZaeLimiter };
