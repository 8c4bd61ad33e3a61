# One output per output of the template. What the stack does not have is null.

output "table_name" {
  description = "The table"
  value       = aws_cloudformation_stack.limiter.outputs["TableName"]
}

output "table_arn" {
  description = "The table"
  value       = aws_cloudformation_stack.limiter.outputs["TableArn"]
}

output "stream_arn" {
  description = "The stream of the table"
  value       = aws_cloudformation_stack.limiter.outputs["StreamArn"]
}

output "aggregator_function_arn" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "AggregatorFunctionArn", null)
}

output "aggregator_function_name" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "AggregatorFunctionName", null)
}

output "aggregator_dlq_url" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "AggregatorDLQUrl", null)
}

output "aggregator_dlq_arn" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "AggregatorDLQArn", null)
}

output "aggregator_dlq_alarm_name" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "AggregatorDLQAlarmName", null)
}

output "lambda_error_rate_alarm_name" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "LambdaErrorRateAlarmName", null)
}

output "lambda_duration_alarm_name" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "LambdaDurationAlarmName", null)
}

output "lambda_throttle_alarm_name" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "LambdaThrottleAlarmName", null)
}

output "stream_iterator_age_alarm_name" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "StreamIteratorAgeAlarmName", null)
}

output "dynamo_db_read_throttle_alarm_name" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "DynamoDBReadThrottleAlarmName", null)
}

output "dynamo_db_write_throttle_alarm_name" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "DynamoDBWriteThrottleAlarmName", null)
}

output "dynamo_db_take_throttle_alarm_name" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "DynamoDBTakeThrottleAlarmName", null)
}

output "audit_archive_bucket_name" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "AuditArchiveBucketName", null)
}

output "audit_archive_bucket_arn" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "AuditArchiveBucketArn", null)
}

output "archive_on_delete" {
  description = "What `zae-limiter delete` does with the archive"
  value       = lookup(aws_cloudformation_stack.limiter.outputs, "ArchiveOnDelete", null)
}

output "code_bucket_name" {
  description = "The zips of the function"
  value       = lookup(aws_cloudformation_stack.limiter.outputs, "CodeBucketName", null)
}

output "acquire_only_policy_arn" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "AcquireOnlyPolicyArn", null)
}

output "full_access_policy_arn" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "FullAccessPolicyArn", null)
}

output "read_only_policy_arn" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "ReadOnlyPolicyArn", null)
}

output "registry_admin_policy_arn" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "RegistryAdminPolicyArn", null)
}

output "namespace_acquire_policy_arn" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "NamespaceAcquirePolicyArn", null)
}

output "namespace_full_access_policy_arn" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "NamespaceFullAccessPolicyArn", null)
}

output "namespace_read_only_policy_arn" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "NamespaceReadOnlyPolicyArn", null)
}

output "app_role_arn" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "AppRoleArn", null)
}

output "app_role_name" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "AppRoleName", null)
}

output "admin_role_arn" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "AdminRoleArn", null)
}

output "admin_role_name" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "AdminRoleName", null)
}

output "read_only_role_arn" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "ReadOnlyRoleArn", null)
}

output "read_only_role_name" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "ReadOnlyRoleName", null)
}

output "permission_boundary_arn" {
  description = "The permission boundary of all roles"
  value       = lookup(aws_cloudformation_stack.limiter.outputs, "PermissionBoundaryArn", null)
}

output "role_name_format" {
  description = "The format of the names of roles"
  value       = lookup(aws_cloudformation_stack.limiter.outputs, "RoleNameFormat", null)
}
