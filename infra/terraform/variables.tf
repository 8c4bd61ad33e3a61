# One input per parameter of the template, with its default and its bounds; .ci/infra compares them.
# The last three are the module's own, beside `name`.

variable "name" {
  type        = string
  description = "The name of the limiter: of the stack, of the table, and the beginning of other names"

  validation {
    condition     = can(regex("^[a-zA-Z][a-zA-Z0-9-]{2,52}$", var.name))
    error_message = "Use a letter, then letters, digits and -, 3 to 53 characters in all."
  }
}

variable "snapshot_windows" {
  type        = string
  default     = "hourly,daily"
  description = "Usage is counted by these windows (hourly, daily, monthly), separated by commas"
  nullable    = false

  validation {
    condition     = can(regex("^(hourly|daily|monthly)(,(hourly|daily|monthly)){0,2}$", var.snapshot_windows))
    error_message = "Use hourly, daily and monthly, separated by commas."
  }
}

variable "snapshot_retention_days" {
  type        = number
  default     = 90
  description = "Usage is kept for this many days"
  nullable    = false

  validation {
    condition     = var.snapshot_retention_days >= 1 && var.snapshot_retention_days <= 36500
    error_message = "Use 1 to 36500."
  }
}

variable "shards_max" {
  type        = number
  default     = 32
  description = "Upkeep splits a hot bucket into at most so many shards; 1 never splits"
  nullable    = false

  validation {
    condition     = contains([1, 2, 4, 8, 16, 32], var.shards_max)
    error_message = "Use one of 1, 2, 4, 8, 16, 32."
  }
}

variable "enable_folding" {
  type        = bool
  default     = true
  description = "Shards of quiet buckets are folded; false while clients of the Python package write"
  nullable    = false
}

variable "resource_index_projection" {
  type        = string
  default     = "KEYS_ONLY"
  description = "What GSI2 keeps (ALL for fleets with readers of the Python package); cannot be changed later"
  nullable    = false

  validation {
    condition     = contains(["KEYS_ONLY", "ALL"], var.resource_index_projection)
    error_message = "Use one of KEYS_ONLY, ALL."
  }
}

variable "enable_aggregator" {
  type        = bool
  default     = true
  description = "Whether a function counts usage from the stream"
  nullable    = false
}

variable "architecture" {
  type        = string
  default     = "x86_64"
  description = "The processor that the function's code is built for"
  nullable    = false

  validation {
    condition     = contains(["x86_64", "arm64"], var.architecture)
    error_message = "Use one of x86_64, arm64."
  }
}

variable "lambda_code_key" {
  type        = string
  default     = ""
  description = "The zip in the code bucket, named by its SHA-256; empty in the first step"
  nullable    = false

  validation {
    condition     = can(regex("^$|^[0-9a-f]{64}\\.zip$", var.lambda_code_key))
    error_message = "Use the SHA-256 of the zip in hexadecimal and .zip."
  }
}

variable "lambda_memory_size" {
  type        = number
  default     = 256
  description = "Memory of the function in MB"
  nullable    = false

  validation {
    condition     = var.lambda_memory_size >= 128 && var.lambda_memory_size <= 3008
    error_message = "Use 128 to 3008."
  }
}

variable "lambda_timeout" {
  type        = number
  default     = 60
  description = "The function is stopped after this many seconds"
  nullable    = false

  validation {
    condition     = var.lambda_timeout >= 1 && var.lambda_timeout <= 900
    error_message = "Use 1 to 900."
  }
}

variable "lambda_duration_threshold" {
  type        = number
  default     = 48000
  description = "The alarm on the function's duration rings above this many milliseconds"
  nullable    = false

  validation {
    condition     = var.lambda_duration_threshold >= 1 && var.lambda_duration_threshold <= 900000
    error_message = "Use 1 to 900000."
  }
}

variable "log_retention_days" {
  type        = number
  default     = 30
  description = "Logs are kept for this many days"
  nullable    = false

  validation {
    condition     = contains([1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653], var.log_retention_days)
    error_message = "Use one of 1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653."
  }
}

variable "enable_tracing" {
  type        = bool
  default     = false
  description = "Whether X-Ray traces the function"
  nullable    = false
}

variable "pitr_recovery_period_days" {
  type        = string
  default     = ""
  description = "Point-in-time recovery reaches back so many days (1 to 35); empty for 35"
  nullable    = false

  validation {
    condition     = can(regex("^$|^([1-9]|[12][0-9]|3[0-5])$", var.pitr_recovery_period_days))
    error_message = "Use 1 to 35, or nothing."
  }
}

variable "enable_deletion_protection" {
  type        = bool
  default     = false
  description = "Whether the table refuses to be deleted"
  nullable    = false
}

variable "enable_contributor_insights" {
  type        = bool
  default     = false
  description = "Whether CloudWatch Contributor Insights shows the hottest keys of the table"
  nullable    = false
}

variable "enable_alarms" {
  type        = bool
  default     = true
  description = "Whether alarms are made"
  nullable    = false
}

variable "alarm_sns_topic_arn" {
  type        = string
  default     = ""
  description = "Alarms are sent to this SNS topic; empty for nobody"
  nullable    = false

  validation {
    condition     = can(regex("^$|^arn:(aws|aws-cn|aws-us-gov):sns:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9_.-]{1,256}$", var.alarm_sns_topic_arn))
    error_message = "Use arn:aws:sns:REGION:ACCOUNT:TOPIC."
  }
}

variable "enable_audit_archival" {
  type        = bool
  default     = true
  description = "Whether audit events that expire are archived in S3"
  nullable    = false
}

variable "audit_archive_glacier_transition_days" {
  type        = number
  default     = 90
  description = "Archived events move to Glacier Instant Retrieval after this many days"
  nullable    = false

  validation {
    condition     = var.audit_archive_glacier_transition_days >= 1 && var.audit_archive_glacier_transition_days <= 3650
    error_message = "Use 1 to 3650."
  }
}

variable "archive_on_delete" {
  type        = string
  default     = "retain"
  description = "What `zae-limiter delete` does with the archive; CloudFormation itself always keeps it"
  nullable    = false

  validation {
    condition     = contains(["retain", "empty"], var.archive_on_delete)
    error_message = "Use one of retain, empty."
  }
}

variable "enable_iam" {
  type        = bool
  default     = true
  description = "Whether policies and roles are made"
  nullable    = false
}

variable "enable_iam_roles" {
  type        = bool
  default     = false
  description = "Whether roles for applications, administrators and readers are made"
  nullable    = false
}

variable "aggregator_role_arn" {
  type        = string
  default     = ""
  description = "A role of your own for the function; empty for one of the stack"
  nullable    = false

  validation {
    condition     = can(regex("^$|^arn:(aws|aws-cn|aws-us-gov):iam::[0-9]{12}:role/.+$", var.aggregator_role_arn))
    error_message = "Use arn:aws:iam::ACCOUNT:role/NAME."
  }
}

variable "permission_boundary" {
  type        = string
  default     = ""
  description = "The ARN of the permission boundary of all roles; empty for none"
  nullable    = false

  validation {
    condition     = can(regex("^$|^arn:(aws|aws-cn|aws-us-gov):iam::([0-9]{12}|aws):policy/.+$", var.permission_boundary))
    error_message = "Use arn:aws:iam::ACCOUNT:policy/NAME."
  }
}

variable "permission_boundary_name" {
  type        = string
  default     = ""
  description = "The same by the name of a policy of this account; PermissionBoundary counts first"
  nullable    = false

  validation {
    condition     = can(regex("^$|^[A-Za-z0-9+=,.@_/-]{1,128}$", var.permission_boundary_name))
    error_message = "Use the name of a policy, 128 characters at most."
  }
}

variable "role_name_format" {
  type        = string
  default     = ""
  description = "The format that the names of roles were made by, for other stacks to read"
  nullable    = false
}

variable "aggregator_role_name" {
  type        = string
  default     = ""
  description = "Empty for STACK-aggr"
  nullable    = false

  validation {
    condition     = length(var.aggregator_role_name) <= 64
    error_message = "Use at most 64 characters."
  }
}

variable "app_role_name" {
  type        = string
  default     = ""
  description = "Empty for STACK-app"
  nullable    = false

  validation {
    condition     = length(var.app_role_name) <= 64
    error_message = "Use at most 64 characters."
  }
}

variable "admin_role_name" {
  type        = string
  default     = ""
  description = "Empty for STACK-admin"
  nullable    = false

  validation {
    condition     = length(var.admin_role_name) <= 64
    error_message = "Use at most 64 characters."
  }
}

variable "read_only_role_name" {
  type        = string
  default     = ""
  description = "Empty for STACK-read"
  nullable    = false

  validation {
    condition     = length(var.read_only_role_name) <= 64
    error_message = "Use at most 64 characters."
  }
}

variable "acquire_only_policy_name" {
  type        = string
  default     = ""
  description = "Empty for STACK-acq"
  nullable    = false

  validation {
    condition     = length(var.acquire_only_policy_name) <= 128
    error_message = "Use at most 128 characters."
  }
}

variable "full_access_policy_name" {
  type        = string
  default     = ""
  description = "Empty for STACK-full"
  nullable    = false

  validation {
    condition     = length(var.full_access_policy_name) <= 128
    error_message = "Use at most 128 characters."
  }
}

variable "read_only_policy_name" {
  type        = string
  default     = ""
  description = "Empty for STACK-read"
  nullable    = false

  validation {
    condition     = length(var.read_only_policy_name) <= 128
    error_message = "Use at most 128 characters."
  }
}

variable "registry_admin_policy_name" {
  type        = string
  default     = ""
  description = "Empty for STACK-reg"
  nullable    = false

  validation {
    condition     = length(var.registry_admin_policy_name) <= 128
    error_message = "Use at most 128 characters."
  }
}

variable "namespace_acquire_policy_name" {
  type        = string
  default     = ""
  description = "Empty for STACK-ns-acq"
  nullable    = false

  validation {
    condition     = length(var.namespace_acquire_policy_name) <= 128
    error_message = "Use at most 128 characters."
  }
}

variable "namespace_full_access_policy_name" {
  type        = string
  default     = ""
  description = "Empty for STACK-ns-full"
  nullable    = false

  validation {
    condition     = length(var.namespace_full_access_policy_name) <= 128
    error_message = "Use at most 128 characters."
  }
}

variable "namespace_read_only_policy_name" {
  type        = string
  default     = ""
  description = "Empty for STACK-ns-read"
  nullable    = false

  validation {
    condition     = length(var.namespace_read_only_policy_name) <= 128
    error_message = "Use at most 128 characters."
  }
}

variable "lambda_zip" {
  type        = string
  default     = null
  description = "The zip that `zae-limiter lambda-export` writes; null for a stack without the function"
}

variable "code_bucket" {
  type        = string
  default     = null
  description = "A bucket of yours, in the region of the stack, that lambda_zip is put into"
}

variable "tags" {
  type        = map(string)
  default     = {}
  description = "Tags of the stack and all its resources, beside those by which zae-limiter finds it"
  nullable    = false

  validation {
    condition     = length(var.tags) <= 43 && alltrue([for key in keys(var.tags) : key != "ManagedBy" && !can(regex("^(?i:aws:)|^zae-limiter:", key))])
    error_message = "Use at most 43 tags, and neither ManagedBy nor keys that begin with aws: or zae-limiter:."
  }
}
