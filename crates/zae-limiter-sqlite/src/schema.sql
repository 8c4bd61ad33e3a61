-- Version 1. Names are kept as text so that a person with a SQLite shell can read the file; the empty text stands for
-- "none", because no entity, resource or limit may be called so.

-- `key` is what rows refer to: small, and never used twice (AUTOINCREMENT), so that an old handle of a purged namespace
-- points at nothing. `generation` grows with every change of the configuration: it is the freshness of a config read.
CREATE TABLE namespace (
  key        INTEGER PRIMARY KEY AUTOINCREMENT,
  id         TEXT    NOT NULL UNIQUE,
  name       TEXT    NOT NULL,
  status     TEXT    NOT NULL CHECK (status IN ('active', 'deleted', 'purging')),
  created_at INTEGER NOT NULL,
  deleted_at INTEGER,
  generation INTEGER NOT NULL DEFAULT 0 CHECK (generation >= 0),
  CHECK ((status = 'active') = (deleted_at IS NULL))
) STRICT;
CREATE UNIQUE INDEX namespace_name ON namespace (name) WHERE deleted_at IS NULL;

-- Ids of namespaces that were purged: an id is never used again.
CREATE TABLE namespace_purged (id TEXT PRIMARY KEY) STRICT, WITHOUT ROWID;

-- One row per bucket, rewritten by every take. `limits` is packed (rows.rs), `active` says how many of them are in force.
-- `hour` and `events` belong to the open usage hour; its amounts are in `limits`.
CREATE TABLE bucket (
  ns          INTEGER NOT NULL REFERENCES namespace (key),
  entity      TEXT    NOT NULL,
  resource    TEXT    NOT NULL,
  refilled_at INTEGER NOT NULL,
  stamp       INTEGER NOT NULL CHECK (stamp >= 0),
  expires_at  INTEGER,
  disabled    INTEGER NOT NULL CHECK (disabled IN (0, 1)),
  hour        INTEGER NOT NULL CHECK (hour >= 0),
  events      INTEGER NOT NULL CHECK (events >= 0),
  active      INTEGER NOT NULL CHECK (active >= 0),
  limits      BLOB    NOT NULL,
  PRIMARY KEY (ns, entity, resource)
) STRICT, WITHOUT ROWID;
CREATE INDEX bucket_resource ON bucket (ns, resource, entity);

CREATE TABLE entity (
  ns         INTEGER NOT NULL REFERENCES namespace (key),
  id         TEXT    NOT NULL,
  name       TEXT    NOT NULL,
  parent     TEXT,
  cascade    INTEGER NOT NULL CHECK (cascade IN (0, 1)),
  metadata   TEXT    NOT NULL,
  created_at INTEGER NOT NULL,
  version    INTEGER NOT NULL CHECK (version > 0),
  PRIMARY KEY (ns, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX entity_parent ON entity (ns, parent, id) WHERE parent IS NOT NULL;

-- The four levels: system ('', ''), resource ('', r), entity (e, ''), entity and resource (e, r).
CREATE TABLE config (
  ns             INTEGER NOT NULL REFERENCES namespace (key),
  entity         TEXT    NOT NULL,
  resource       TEXT    NOT NULL,
  limits         TEXT    NOT NULL,
  disabled       INTEGER CHECK (disabled IN (0, 1)),
  on_unavailable TEXT    CHECK (on_unavailable IN ('block', 'allow')),
  version        INTEGER NOT NULL CHECK (version > 0),
  PRIMARY KEY (ns, entity, resource),
  CHECK (limits <> '' OR disabled IS NOT NULL)
) STRICT, WITHOUT ROWID;
CREATE INDEX config_resource ON config (ns, resource, entity);

-- Hours that are over. `counter` is the name of a limit, in millitokens, or '' for the number of grants.
CREATE TABLE usage (
  ns       INTEGER NOT NULL REFERENCES namespace (key),
  entity   TEXT    NOT NULL,
  hour     INTEGER NOT NULL,
  resource TEXT    NOT NULL,
  counter  TEXT    NOT NULL,
  amount   INTEGER NOT NULL,
  PRIMARY KEY (ns, entity, hour, resource, counter)
) STRICT, WITHOUT ROWID;
CREATE INDEX usage_resource ON usage (ns, resource, hour);

CREATE TABLE audit (
  seq       INTEGER PRIMARY KEY,
  ns        INTEGER NOT NULL REFERENCES namespace (key),
  subject   TEXT    NOT NULL,
  id        TEXT    NOT NULL,
  at        INTEGER NOT NULL,
  action    TEXT    NOT NULL,
  principal TEXT,
  resource  TEXT,
  details   TEXT    NOT NULL
) STRICT;
CREATE INDEX audit_subject ON audit (ns, subject, id);

CREATE TABLE meta (
  name  TEXT PRIMARY KEY,
  value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
