//! A reader of CloudFormation templates: parameters, conditions and functions, as far as the
//! template uses them. A reference to something that a stack does not have is a failure.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use zae_limiter_deploy::{LAMBDA_CODE_KEY, StackOptions, TEMPLATE};

pub(crate) const STACK: &str = "my-app";
pub(crate) const ACCOUNT: &str = "123456789012";
pub(crate) const REGION: &str = "us-east-1";
pub(crate) const CODE: &str =
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855.zip";

/// The template as it is.
pub(crate) fn template() -> Value {
    serde_saphyr::from_str(TEMPLATE).expect("the template is YAML")
}

/// A template with its parameters.
pub(crate) struct Stack {
    template: Value,
    parameters: BTreeMap<String, Value>,
    conditions: BTreeMap<String, bool>,
}

impl Stack {
    /// The first step of a deployment: no code yet.
    pub(crate) fn first(options: &StackOptions) -> Stack {
        let parameters = options.parameters(STACK).unwrap_or_else(|error| panic!("{error}"));
        Stack::new(template(), &parameters)
    }

    /// The second step, with code.
    pub(crate) fn whole(options: &StackOptions) -> Stack {
        let mut parameters = options.parameters(STACK).unwrap_or_else(|error| panic!("{error}"));
        parameters.insert(LAMBDA_CODE_KEY.to_owned(), CODE.to_owned());
        Stack::new(template(), &parameters)
    }

    pub(crate) fn new(template: Value, given: &BTreeMap<String, String>) -> Stack {
        let declared = object(&template["Parameters"]);
        for name in given.keys() {
            assert!(declared.contains_key(name), "the template has no parameter {name}");
        }
        let mut parameters = BTreeMap::new();
        for (name, rule) in declared {
            let value = given.get(name).cloned().map_or(rule["Default"].clone(), Value::String);
            check_parameter(name, rule, &value);
            parameters.insert(name.clone(), value);
        }
        let mut stack = Stack { template, parameters, conditions: BTreeMap::new() };
        let names: Vec<String> = object(&stack.template["Conditions"]).keys().cloned().collect();
        for name in names {
            let holds = stack.holds(&stack.template["Conditions"][&name]);
            stack.conditions.insert(name, holds);
        }
        stack
    }

    /// Whether a condition of the template holds. The conditions are few and short, so each is
    /// worked out as often as it is used.
    fn holds(&self, condition: &Value) -> bool {
        let (function, argument) = single(condition).expect("a condition is one function");
        let all = |argument: &Value| -> Vec<bool> {
            argument.as_array().expect("a list").iter().map(|one| self.holds(one)).collect()
        };
        match function {
            "Condition" => {
                let name = argument.as_str().expect("the name of a condition");
                let found = &self.template["Conditions"][name];
                assert!(!found.is_null(), "there is no condition {name}");
                self.holds(found)
            }
            "Fn::Equals" => {
                let sides = argument.as_array().expect("two sides");
                assert_eq!(sides.len(), 2, "{condition}");
                text(&self.resolved(&sides[0])) == text(&self.resolved(&sides[1]))
            }
            "Fn::Not" => !all(argument)[0],
            "Fn::And" => all(argument).into_iter().all(|holds| holds),
            "Fn::Or" => all(argument).into_iter().any(|holds| holds),
            other => panic!("{other} in a condition: not every engine has it"),
        }
    }

    fn is(&self, condition: &str) -> bool {
        let found = self.conditions.get(condition);
        *found.unwrap_or_else(|| panic!("there is no condition {condition}"))
    }

    fn exists(&self, part: &Value) -> bool {
        part["Condition"].as_str().is_none_or(|condition| self.is(condition))
    }

    /// The logical ids of the resources that the stack has.
    pub(crate) fn resources(&self) -> BTreeSet<String> {
        let all = object(&self.template["Resources"]);
        all.iter().filter(|(_, found)| self.exists(found)).map(|(name, _)| name.clone()).collect()
    }

    /// The properties of a resource, worked out.
    pub(crate) fn properties(&self, resource: &str) -> Value {
        let found = &self.template["Resources"][resource];
        assert!(!found.is_null() && self.exists(found), "the stack has no {resource}");
        self.resolved(&found["Properties"])
    }

    /// Works out everything there is: a reference to what is missing fails. Returns the outputs.
    pub(crate) fn outputs(&self) -> BTreeMap<String, Value> {
        for resource in self.resources() {
            self.properties(&resource);
            let after = self.template["Resources"][&resource]["DependsOn"].as_str();
            assert!(after.is_none_or(|after| self.resources().contains(after)), "{resource}");
        }
        let all = object(&self.template["Outputs"]);
        let there = all.iter().filter(|(_, output)| self.exists(output));
        there.map(|(name, output)| (name.clone(), self.resolved(output))).collect()
    }

    fn resolved(&self, value: &Value) -> Value {
        match value {
            Value::Array(list) => {
                let resolved = list.iter().map(|one| self.resolved(one));
                Value::Array(resolved.filter(|one| !is_no_value(one)).collect())
            }
            Value::Object(map) => match single(value).filter(|(name, _)| is_function(name)) {
                Some((function, argument)) => self.called(function, argument),
                None => {
                    let resolved = map.iter().map(|(key, one)| (key.clone(), self.resolved(one)));
                    Value::Object(resolved.filter(|(_, one)| !is_no_value(one)).collect())
                }
            },
            other => other.clone(),
        }
    }

    fn called(&self, function: &str, argument: &Value) -> Value {
        match function {
            "Ref" => self.reference(argument.as_str().expect("a name")),
            "Fn::GetAtt" => {
                let parts = argument.as_array().expect("a resource and its attribute");
                self.attribute(&text(&parts[0]), &text(&parts[1]))
            }
            "Fn::If" => {
                let parts = argument.as_array().expect("a condition and two values");
                assert_eq!(parts.len(), 3, "{argument}");
                let place = if self.is(&text(&parts[0])) { 1 } else { 2 };
                self.resolved(&parts[place])
            }
            "Fn::Sub" => Value::String(self.substituted(argument.as_str().expect("a text"))),
            other => panic!("{other} is not one of the functions that the template may use"),
        }
    }

    fn substituted(&self, pattern: &str) -> String {
        let mut made = String::new();
        let mut rest = pattern;
        while let Some((before, after)) = rest.split_once("${") {
            let (name, behind) = after.split_once('}').expect("a closing brace");
            made.push_str(before);
            let value = match name.split_once('.') {
                Some((resource, attribute)) => self.attribute(resource, attribute),
                None => self.reference(name),
            };
            made.push_str(&text(&value));
            rest = behind;
        }
        made + rest
    }

    fn reference(&self, name: &str) -> Value {
        match name {
            "AWS::NoValue" => no_value(),
            "AWS::StackName" => json!(STACK),
            "AWS::AccountId" => json!(ACCOUNT),
            "AWS::Region" => json!(REGION),
            "AWS::Partition" => json!("aws"),
            _ => match self.parameters.get(name) {
                Some(value) => value.clone(),
                None => self.attribute(name, "Ref"),
            },
        }
    }

    /// What a resource is called, or an attribute of it; made up where AWS makes it up.
    fn attribute(&self, resource: &str, attribute: &str) -> Value {
        let found = &self.template["Resources"][resource];
        assert!(!found.is_null(), "there is no resource {resource}");
        assert!(self.exists(found), "{resource} is referred to, and the stack does not have it");
        let kind = found["Type"].as_str().expect("a type");
        let named = |property: &str| text(&self.resolved(&found["Properties"][property]));
        let arn = |service: &str, region: &str, rest: String| {
            format!("arn:aws:{service}:{region}:{ACCOUNT}:{rest}")
        };
        let made_up = || format!("{STACK}-{}-made-up", resource.to_lowercase());
        let value = match (kind, attribute) {
            ("AWS::DynamoDB::Table", "Ref") => named("TableName"),
            ("AWS::DynamoDB::Table", "Arn") => {
                arn("dynamodb", REGION, format!("table/{}", named("TableName")))
            }
            ("AWS::DynamoDB::Table", "StreamArn") => {
                arn("dynamodb", REGION, format!("table/{}/stream/now", named("TableName")))
            }
            ("AWS::S3::Bucket", "Ref") => made_up(),
            ("AWS::S3::Bucket", "Arn") => format!("arn:aws:s3:::{}", made_up()),
            ("AWS::SQS::Queue", "Ref") => format!("https://sqs/{}", named("QueueName")),
            ("AWS::SQS::Queue", "Arn") => arn("sqs", REGION, named("QueueName")),
            ("AWS::SQS::Queue", "QueueName") => named("QueueName"),
            ("AWS::Logs::LogGroup", "Arn") => {
                arn("logs", REGION, format!("log-group:{}:*", named("LogGroupName")))
            }
            ("AWS::IAM::ManagedPolicy", "Ref") => {
                arn("iam", "", format!("policy/{}", named("ManagedPolicyName")))
            }
            // A role without a name gets one.
            ("AWS::IAM::Role", "Arn") if found["Properties"]["RoleName"].is_null() => {
                arn("iam", "", format!("role/{}", made_up()))
            }
            ("AWS::IAM::Role", "Ref") => named("RoleName"),
            ("AWS::IAM::Role", "Arn") => arn("iam", "", format!("role/{}", named("RoleName"))),
            ("AWS::Lambda::Function", "Ref") => named("FunctionName"),
            ("AWS::Lambda::Function", "Arn") => {
                arn("lambda", REGION, format!("function:{}", named("FunctionName")))
            }
            ("AWS::CloudWatch::Alarm", "Ref") => named("AlarmName"),
            _ => panic!("{kind} has no attribute {attribute} here"),
        };
        Value::String(value)
    }
}

fn check_parameter(name: &str, rule: &Value, value: &Value) {
    let shown = text(value);
    if let Some(allowed) = rule["AllowedValues"].as_array() {
        assert!(allowed.iter().any(|one| text(one) == shown), "{name} takes no {shown:?}");
    }
    if rule["Type"] == "Number" {
        let number: i64 = shown.parse().unwrap_or_else(|_| panic!("{name} takes no {shown:?}"));
        assert!(rule["MinValue"].as_i64().is_none_or(|min| number >= min), "{name} {number}");
        assert!(rule["MaxValue"].as_i64().is_none_or(|max| number <= max), "{name} {number}");
    }
    let longest = rule["MaxLength"].as_u64().unwrap_or(4_096);
    assert!(shown.len() as u64 <= longest, "{name} {shown:?}");
}

pub(crate) fn object(value: &Value) -> &Map<String, Value> {
    value.as_object().unwrap_or_else(|| panic!("{value} is no object"))
}

/// The only entry of an object.
fn single(value: &Value) -> Option<(&str, &Value)> {
    let map = value.as_object().filter(|map| map.len() == 1)?;
    map.iter().next().map(|(name, argument)| (name.as_str(), argument))
}

fn is_function(name: &str) -> bool {
    name == "Ref" || name.starts_with("Fn::")
}

fn no_value() -> Value {
    json!({ "AWS::NoValue": true })
}

fn is_no_value(value: &Value) -> bool {
    *value == no_value()
}

/// A value as CloudFormation writes it into a text.
pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(_) | Value::Bool(_) => value.to_string(),
        other => panic!("{other} is no text"),
    }
}
