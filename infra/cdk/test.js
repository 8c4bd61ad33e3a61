// Synthesizes stacks, offline, and compares them with the template.
'use strict';

const assert = require('node:assert/strict');
const { mkdtempSync, readFileSync, rmSync, writeFileSync } = require('node:fs');
const { createHash } = require('node:crypto');
const { tmpdir } = require('node:os');
const { join } = require('node:path');
const { after, test } = require('node:test');
const { App, Aws, NestedStack, Stack } = require('aws-cdk-lib');
const iam = require('aws-cdk-lib/aws-iam');
const yaml = require('yaml');
const { ZaeLimiter } = require('./index.js');

const template = yaml.parse(readFileSync(join(__dirname, 'template.yaml'), 'utf8'));
const folder = mkdtempSync(join(tmpdir(), 'zae-limiter-cdk-'));
after(() => rmSync(folder, { recursive: true }));

/** A name as a reader of the template would write it, by a rule of its own. */
const words = { PITR: 'Pitr', SNS: 'Sns', IAM: 'Iam' };
function prop(parameter) {
  const title = parameter.replace(/PITR|SNS|IAM/g, (word) => words[word]);
  return title[0].toLowerCase() + title.slice(1);
}

const isSwitch = (parameter) => parameter.AllowedValues?.join() === 'true,false';

let stacks = 0;

/** A program with one stack; `build` may add to it. */
function synth(props, build = () => {}) {
  // What CDK's own rules for templates call fatal is an error; warnings are looked for below.
  const context = { '@aws-cdk/core:validateAgainstDefaultRules': true };
  const outdir = join(folder, `out-${stacks++}`);
  const app = new App({ analyticsReporting: false, context, outdir });
  const stack = new Stack(app, 'my-app');
  build(new ZaeLimiter(stack, 'Limiter', props), stack);
  const assembly = app.synth();
  const artifact = assembly.getStackByName('my-app');
  const found = artifact.template;
  const report = JSON.parse(readFileSync(join(outdir, 'validation-report.json'), 'utf8'));
  assert.deepEqual(report.pluginReports.map((plugin) => plugin.violations).flat(), []);
  // What CDK adds to every stack.
  delete found.Parameters?.BootstrapVersion;
  delete found.Rules;
  return { found, artifact };
}

/** The template with values in the place of its parameters; scalars as texts. */
function expected(values) {
  const fill = (node) => {
    if (Array.isArray(node)) {
      return node.map(fill);
    }
    if (node === null || typeof node !== 'object') {
      return String(node);
    }
    if (node.Ref in values && Object.keys(node).length === 1) {
      return String(values[node.Ref]);
    }
    const entries = Object.entries(node).map(([key, value]) => {
      if (key === 'Fn::Sub') {
        const text = value.replace(/\$\{(\w+)\}/g, (all, name) => values[name] ?? all);
        return [key, text];
      }
      // A list of one, which CDK writes as a list.
      return [key, key === 'DependsOn' ? [value].flat() : fill(value)];
    });
    return Object.fromEntries(entries);
  };
  const { Resources, Conditions, Outputs } = template;
  return fill({ Resources, Conditions, Outputs });
}

/** The same with its scalars as texts: CloudFormation takes 90 and "90". */
function texts(node) {
  if (Array.isArray(node)) {
    return node.map(texts);
  }
  if (node === null || typeof node !== 'object') {
    return String(node);
  }
  return Object.fromEntries(Object.entries(node).map(([key, it]) => [key, texts(it)]));
}

const defaults = Object.fromEntries(
  Object.entries(template.Parameters).map(([name, parameter]) => [name, parameter.Default]),
);

/** A value of each parameter that is not its default; of texts with a pattern, by hand. */
const samples = {
  SnapshotWindows: 'hourly,monthly',
  PITRRecoveryPeriodDays: '7',
  LambdaCodeKey: `${'0'.repeat(64)}.zip`,
  AlarmSNSTopicArn: 'arn:aws:sns:eu-west-1:123456789012:alarms',
  AggregatorRoleArn: 'arn:aws:iam::123456789012:role/mine',
  PermissionBoundary: 'arn:aws:iam::123456789012:policy/boundary',
  PermissionBoundaryName: 'boundary',
};
function other(name, parameter) {
  if (isSwitch(parameter)) {
    return parameter.Default !== 'true';
  }
  if (parameter.AllowedValues) {
    return parameter.AllowedValues.find((value) => value !== parameter.Default);
  }
  return samples[name] ?? (parameter.Type === 'Number' ? parameter.MinValue : `my-${name}`);
}

/** Compares piece by piece, so that a failure names the piece. */
function compare(found, wanted) {
  assert.deepEqual(Object.keys(found).sort(), ['Conditions', 'Description', 'Outputs', 'Resources']);
  for (const section of ['Resources', 'Conditions', 'Outputs']) {
    assert.deepEqual(Object.keys(found[section]).sort(), Object.keys(wanted[section]).sort());
    for (const [id, piece] of Object.entries(wanted[section])) {
      assert.deepEqual(found[section][id], piece, `${section}.${id}`);
    }
  }
}

function clean({ found }) {
  if (found.Parameters && Object.keys(found.Parameters).length === 0) {
    delete found.Parameters;
  }
  delete found.AWSTemplateFormatVersion;
  return texts(found);
}

test('a stack of defaults is the template', () => {
  compare(clean(synth({})), expected(defaults));
});

test('every parameter is passed', () => {
  const values = Object.fromEntries(
    Object.entries(template.Parameters).map(([name, it]) => [name, other(name, it)]),
  );
  // Roles need policies: seen by itself.
  values.EnableIAM = true;
  for (const [name, value] of Object.entries(values)) {
    const same = String(value) === String(template.Parameters[name].Default);
    assert.equal(same, name === 'EnableIAM', name);
  }
  const props = Object.fromEntries(Object.entries(values).map(([name, it]) => [prop(name), it]));
  compare(clean(synth(props)), expected(values));
  compare(clean(synth({ enableIam: false })), expected({ ...defaults, EnableIAM: false }));
});

test('the zip becomes an asset and the code of the function', () => {
  const zip = join(folder, 'lambda.zip');
  writeFileSync(zip, 'code');
  const digest = createHash('sha256').update('code').digest('hex');
  const { found, artifact } = synth({ lambdaZip: zip });
  const code = found.Resources.AggregatorFunction.Properties.Code;
  assert.match(JSON.stringify(code.S3Bucket), /cdk-hnb659fds-assets/);
  assert.match(code.S3Key, /^[0-9a-f]{64}\.zip$/);
  const [list] = artifact.dependencies.filter((it) => it.contents?.files);
  const files = Object.values(list.contents.files).map((file) => file.source.path);
  assert.ok(files.some((path) => /^asset\..*\.zip$/.test(path)), `the asset is published: ${files}`);
  const wanted = expected({ ...defaults, LambdaCodeKey: `${digest}.zip` });
  wanted.Resources.AggregatorFunction.Properties.Code = texts(code);
  compare(clean({ found }), wanted);
});

test('types say what the template says', () => {
  const source = readFileSync(join(__dirname, 'index.d.ts'), 'utf8');
  const body = source.match(/interface ZaeLimiterProps \{\n(.*?)\n\}/s)[1];
  const pattern = /\/\*\* (.*) @default (.*) \*\/\n  readonly (\w+)\?: (.*);/g;
  const found = [...body.matchAll(pattern)].map(([, ...it]) => it).sort();
  const type = (it) => {
    if (isSwitch(it)) {
      return 'boolean';
    }
    if (it.Type === 'Number') {
      return 'number';
    }
    return it.AllowedValues?.map((value) => `'${value}'`).join(' | ') ?? 'string';
  };
  const wanted = Object.entries(template.Parameters).map(([name, it]) => {
    return [`${it.Description}.`, String(it.Default) || "''", prop(name), type(it)];
  });
  assert.deepEqual(found, wanted.sort());
  const properties = body.match(/^  readonly /gm).length;
  assert.equal(properties, wanted.length + 1, 'the properties of the template, and lambdaZip');
});

test('what cannot be right is refused', () => {
  const wrong = [
    [{ shardsMax: 33 }, 'shardsMax 33: use one of 1, 2, 4, 8, 16, 32'],
    [{ shardsMax: 0 }, 'shardsMax 0: use one of 1, 2, 4, 8, 16, 32'],
    [{ lambdaMemorySize: 64 }, 'lambdaMemorySize 64: use 128 to 3008'],
    [{ lambdaMemorySize: 200.5 }, 'lambdaMemorySize 200.5: use a whole number'],
    [{ shardsMax: '2' }, 'shardsMax "2": use a number'],
    [{ enableAlarms: 'false' }, 'enableAlarms "false": use true or false'],
    [{ architecture: 'mips' }, 'architecture "mips": use one of x86_64, arm64'],
    [{ logRetentionDays: 2 }, /^Error: logRetentionDays 2: use one of 1, 3, 5, /],
    [{ snapshotWindows: 'weekly' }, /^Error: snapshotWindows "weekly": use what matches /],
    [{ appRoleName: 'a'.repeat(65) }, /: use at most 64 characters$/],
    [{ alarmSnsTopicArn: `arn:aws:sns:${Aws.REGION}:123456789012:x` }, /use a literal$/],
    [{ shardMax: 2 }, /^Error: there is no property shardMax; there are: .*, shardsMax, /],
    [{ enableIam: false, enableIamRoles: true }, /enableIamRoles needs enableIam/],
    [{ lambdaZip: __filename, lambdaCodeKey: samples.LambdaCodeKey }, /name the code twice/],
  ];
  for (const [props, message] of wrong) {
    const matches = typeof message === 'string' ? { message } : message;
    assert.throws(() => synth(props), matches, JSON.stringify(props));
  }
  const stack = new Stack(new App(), 'ab');
  assert.throws(() => new ZaeLimiter(stack, 'Limiter'), /^Error: stack ab: .* 3 to 53 characters/);
  const nested = new NestedStack(new Stack(new App(), 'outer'), 'inner');
  assert.throws(() => new ZaeLimiter(nested, 'Limiter'), /is not nested/);
});

test('grants attach the managed policies', () => {
  const policies = Object.entries(template.Resources).filter(
    ([, resource]) => resource.Type === 'AWS::IAM::ManagedPolicy',
  );
  const grants = Object.getOwnPropertyNames(ZaeLimiter.prototype).filter((it) => /^grant/.test(it));
  const assumedBy = new iam.AccountRootPrincipal();
  const { found } = synth({}, (limiter, stack) => {
    for (const grant of grants) {
      const role = new iam.Role(stack, grant, { assumedBy });
      limiter[grant](role);
    }
    limiter.grantAcquire(new iam.User(stack, 'User'));
    limiter.grantAcquire(new iam.Group(stack, 'Group'));
  });
  const attached = {};
  for (const [id, { Properties }] of Object.entries(found.Resources)) {
    const name = id.replace(/[0-9A-F]{8}$/, '');
    if (/^grant|^User|^Group/.test(name)) {
      attached[name] = Properties.ManagedPolicyArns;
    }
  }
  assert.deepEqual(attached, {
    grantAcquire: [{ Ref: 'AcquireOnlyPolicy' }],
    grantFullAccess: [{ Ref: 'FullAccessPolicy' }],
    grantReadOnly: [{ Ref: 'ReadOnlyPolicy' }],
    grantRegistryAdmin: [{ Ref: 'RegistryAdminPolicy' }],
    grantNamespaceAcquire: [{ Ref: 'NamespaceAcquirePolicy' }],
    grantNamespaceFullAccess: [{ Ref: 'NamespaceFullAccessPolicy' }],
    grantNamespaceReadOnly: [{ Ref: 'NamespaceReadOnlyPolicy' }],
    User: [{ Ref: 'AcquireOnlyPolicy' }],
    Group: [{ Ref: 'AcquireOnlyPolicy' }],
  });
  assert.equal(policies.length, grants.length, 'a grant for every policy');
});

test('a grant that would be forgotten is refused', () => {
  const arn = 'arn:aws:iam::123456789012';
  const imported = [
    (stack) => iam.Role.fromRoleArn(stack, 'Role', `${arn}:role/theirs`),
    (stack) => iam.Role.fromRoleArn(stack, 'Fixed', `${arn}:role/theirs`, { mutable: false }),
    (stack) => iam.Group.fromGroupArn(stack, 'Group', `${arn}:group/theirs`),
    () => new iam.ServicePrincipal('lambda.amazonaws.com'),
  ];
  for (const principal of imported) {
    const build = (limiter, stack) => limiter.grantAcquire(principal(stack));
    assert.throws(() => synth({}, build), /of this program only/, String(principal));
  }
  const build = (limiter, stack) => limiter.grantAcquire(new iam.User(stack, 'User'));
  assert.throws(() => synth({ enableIam: false }, build), /enableIam is false/);
});

test('the stack is tagged, and its table can be named', () => {
  const { artifact } = synth({}, (limiter, stack) => {
    const names = [limiter.tableName, limiter.tableArn, limiter.tableStreamArn];
    assert.deepEqual(stack.resolve(names), [
      { Ref: 'RateLimitsTable' },
      { 'Fn::GetAtt': ['RateLimitsTable', 'Arn'] },
      { 'Fn::GetAtt': ['RateLimitsTable', 'StreamArn'] },
    ]);
  });
  assert.deepEqual(artifact.tags, {
    ManagedBy: 'zae-limiter',
    'zae-limiter:name': 'my-app',
    'zae-limiter:type': 'limiter',
  });
});
