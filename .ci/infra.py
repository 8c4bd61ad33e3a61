"""Compares the Terraform module with the CloudFormation template, both ways.

    infra.py TEMPLATE MODULE

Prints every difference and exits with 1 if there is one. Called by .ci/infra.
"""

import json
import re
import sys
from pathlib import Path

import hcl2
import yaml

# Inputs of the module that are no parameters of the template.
OWN_INPUTS = {"name", "tags", "lambda_zip", "code_bucket"}

# What the module replaces when it uploads the code itself.
CODE = {"S3Bucket": {"Ref": "CodeBucket"}, "S3Key": {"Ref": "LambdaCodeKey"}}

# Parameters that the module computes when it uploads the code itself.
COMPUTED = {"LambdaCodeKey": "${local.lambda_code_key}"}

STACK = "aws_cloudformation_stack.limiter"


def snake(name):
    """AlarmSNSTopicArn -> alarm_sns_topic_arn."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def text(value):
    """Literal strings come with their quotes, expressions without."""
    quoted = isinstance(value, str) and value.startswith('"')
    return json.loads(value) if quoted else value


def blocks(module, kind):
    """The blocks of one kind by their label."""
    found = {}
    for path in sorted(module.glob("*.tf")):
        with path.open() as file:
            for block in hcl2.load(file).get(kind, []):
                for label, body in block.items():
                    found[text(label)] = body
    return found


def resource(module, kind, name):
    for path in sorted(module.glob("*.tf")):
        with path.open() as file:
            for block in hcl2.load(file).get("resource", []):
                for label, bodies in block.items():
                    if text(label) == kind:
                        found = {text(key): body for key, body in bodies.items()}
                        if name in found:
                            return found[name]
    return {}


def is_switch(parameter):
    return parameter.get("AllowedValues") == ["true", "false"]


def expected_input(name, parameter):
    """What the input of a parameter has to say."""
    variable = f"var.{snake(name)}"
    default = parameter["Default"]
    rules = []
    if is_switch(parameter):
        kind, default = "bool", default == "true"
    else:
        kind = {"String": "string", "Number": "number"}[parameter["Type"]]
        if "AllowedValues" in parameter:
            rules.append(f"contains({json.dumps(parameter['AllowedValues'])}, {variable})")
        if "MinValue" in parameter or "MaxValue" in parameter:
            low, high = parameter["MinValue"], parameter["MaxValue"]
            rules.append(f"{variable} >= {low} && {variable} <= {high}")
        if "AllowedPattern" in parameter:
            rules.append(f"can(regex({json.dumps(parameter['AllowedPattern'])}, {variable}))")
        if "MaxLength" in parameter:
            rules.append(f"length({variable}) <= {parameter['MaxLength']}")
    return {
        "type": kind,
        "default": default,
        "description": parameter["Description"],
        "nullable": False,
        "conditions": ["${" + rule + "}" for rule in rules],
    }


def found_input(body):
    found = {key: text(body.get(key)) for key in ("type", "default", "description", "nullable")}
    found["conditions"] = [rule["condition"] for rule in body.get("validation", [])]
    return found


def expected_output(name, output):
    """Outputs under a condition may be missing from the stack."""
    if "Condition" in output:
        return "${lookup(" + f'{STACK}.outputs, "{name}", null' + ")}"
    return "${" + f'{STACK}.outputs["{name}"]' + "}"


def both_ways(what, expected, found):
    for name in expected.keys() - found.keys():
        yield f"{what} {name} is missing"
    for name in found.keys() - expected.keys():
        yield f"{what} {name} has nothing in the template"


def differences(template, module):
    parameters, outputs = template["Parameters"], template["Outputs"]

    function = template["Resources"].get("AggregatorFunction", {})
    if function.get("Properties", {}).get("Code") != CODE:
        yield f"main.tf replaces the code of AggregatorFunction, which is not {CODE} any more"

    inputs = {snake(name): expected_input(name, it) for name, it in parameters.items()}
    variables = blocks(module, "variable")
    for name in OWN_INPUTS - variables.keys():
        yield f"input {name} is missing"
    variables = {name: found_input(it) for name, it in variables.items() if name not in OWN_INPUTS}
    yield from both_ways("input", inputs, variables)
    for name in inputs.keys() & variables.keys():
        for key, wanted in inputs[name].items():
            found = variables[name][key]
            # False is not 0 here.
            if (type(found), found) != (type(wanted), wanted):
                yield f"input {name}: {key} is {found!r}, the template has {wanted!r}"

    passed = resource(module, *STACK.split(".")).get("parameters", {})
    passed = {text(name): value for name, value in passed.items()}
    wanted = {name: COMPUTED.get(name, "${var." + snake(name) + "}") for name in parameters}
    yield from both_ways("parameter", wanted, passed)
    for name in wanted.keys() & passed.keys():
        if passed[name] != wanted[name]:
            yield f"parameter {name} is {passed[name]!r} instead of {wanted[name]!r}"

    results = {snake(name): expected_output(name, it) for name, it in outputs.items()}
    found = {name: body.get("value") for name, body in blocks(module, "output").items()}
    yield from both_ways("output", results, found)
    for name in results.keys() & found.keys():
        if found[name] != results[name]:
            yield f"output {name} is {found[name]!r} instead of {results[name]!r}"


def main():
    template = yaml.safe_load(Path(sys.argv[1]).read_text())
    module = Path(sys.argv[2])
    wrong = sorted(differences(template, module))
    for difference in wrong:
        print(f"{module}: {difference}", file=sys.stderr)
    if wrong:
        sys.exit(1)
    counts = f"{len(template['Parameters'])} parameters, {len(template['Outputs'])} outputs"
    print(f"{module} has what the template has: {counts}")


main()
