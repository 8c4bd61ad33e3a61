# A stack of zae-limiter: the template beside this file, with an input per parameter.

terraform {
  required_version = ">= 1.3"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.0"
    }
  }
}

locals {
  template        = yamldecode(file("${path.module}/template.yaml"))
  function        = local.template.Resources.AggregatorFunction
  lambda_code_key = var.lambda_zip == null ? var.lambda_code_key : "${filesha256(var.lambda_zip)}.zip"

  # Terraform has to upload the zip before it makes the stack, so the function takes its code from
  # a bucket that is there before the stack, not from the stack's own. Nothing else differs.
  code = { S3Bucket = var.code_bucket, S3Key = { Ref = "LambdaCodeKey" } }
  with_code = merge(local.template, {
    Resources = merge(local.template.Resources, {
      AggregatorFunction = merge(local.function, {
        Properties = merge(local.function.Properties, { Code = local.code })
      })
    })
  })
}

# The name changes with the code. The old zip goes last: a stack that rolls back needs it.
resource "aws_s3_object" "code" {
  count = var.lambda_zip == null ? 0 : 1

  bucket = var.code_bucket
  key    = local.lambda_code_key
  source = var.lambda_zip

  lifecycle {
    create_before_destroy = true

    precondition {
      condition     = var.code_bucket != null
      error_message = "lambda_zip needs code_bucket, the bucket that the zip is put into."
    }
    precondition {
      condition     = var.lambda_code_key == ""
      error_message = "lambda_zip and lambda_code_key name the code twice; use one of them."
    }
  }
}

resource "aws_cloudformation_stack" "limiter" {
  name          = var.name
  template_body = var.lambda_zip == null ? file("${path.module}/template.yaml") : jsonencode(local.with_code)
  # Roles and policies have names.
  capabilities = ["CAPABILITY_NAMED_IAM"]

  parameters = {
    SnapshotWindows                   = var.snapshot_windows
    SnapshotRetentionDays             = var.snapshot_retention_days
    ShardsMax                         = var.shards_max
    EnableFolding                     = var.enable_folding
    ResourceIndexProjection           = var.resource_index_projection
    EnableAggregator                  = var.enable_aggregator
    Architecture                      = var.architecture
    LambdaCodeKey                     = local.lambda_code_key
    LambdaMemorySize                  = var.lambda_memory_size
    LambdaTimeout                     = var.lambda_timeout
    LambdaDurationThreshold           = var.lambda_duration_threshold
    LogRetentionDays                  = var.log_retention_days
    EnableTracing                     = var.enable_tracing
    PITRRecoveryPeriodDays            = var.pitr_recovery_period_days
    EnableDeletionProtection          = var.enable_deletion_protection
    EnableContributorInsights         = var.enable_contributor_insights
    EnableAlarms                      = var.enable_alarms
    AlarmSNSTopicArn                  = var.alarm_sns_topic_arn
    EnableAuditArchival               = var.enable_audit_archival
    AuditArchiveGlacierTransitionDays = var.audit_archive_glacier_transition_days
    ArchiveOnDelete                   = var.archive_on_delete
    EnableIAM                         = var.enable_iam
    EnableIAMRoles                    = var.enable_iam_roles
    AggregatorRoleArn                 = var.aggregator_role_arn
    PermissionBoundary                = var.permission_boundary
    PermissionBoundaryName            = var.permission_boundary_name
    RoleNameFormat                    = var.role_name_format
    AggregatorRoleName                = var.aggregator_role_name
    AppRoleName                       = var.app_role_name
    AdminRoleName                     = var.admin_role_name
    ReadOnlyRoleName                  = var.read_only_role_name
    AcquireOnlyPolicyName             = var.acquire_only_policy_name
    FullAccessPolicyName              = var.full_access_policy_name
    ReadOnlyPolicyName                = var.read_only_policy_name
    RegistryAdminPolicyName           = var.registry_admin_policy_name
    NamespaceAcquirePolicyName        = var.namespace_acquire_policy_name
    NamespaceFullAccessPolicyName     = var.namespace_full_access_policy_name
    NamespaceReadOnlyPolicyName       = var.namespace_read_only_policy_name
  }

  # `zae-limiter list` finds the stack by these.
  tags = merge(var.tags, {
    "ManagedBy"        = "zae-limiter"
    "zae-limiter:name" = var.name
    "zae-limiter:type" = "limiter"
  })

  # An update that would replace or remove the table is refused.
  policy_body = jsonencode({
    Statement = [
      { Effect = "Allow", Action = "Update:*", Principal = "*", Resource = "*" },
      {
        Effect    = "Deny"
        Action    = ["Update:Replace", "Update:Delete"]
        Principal = "*"
        Resource  = "LogicalResourceId/RateLimitsTable"
      },
    ]
  })

  lifecycle {
    precondition {
      condition     = var.enable_iam || !var.enable_iam_roles
      error_message = "enable_iam_roles needs enable_iam; allow both, or neither."
    }
  }

  depends_on = [aws_s3_object.code]
}
