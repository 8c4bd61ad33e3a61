-- Version 2. What a change has to do to many rows is done in steps, and a step that is still to come is written down first.

-- Work that has begun and not reached all its rows. `flag`: the buckets of a level are to get its flag; until they have it,
-- takes ask the level itself. `delete`: the buckets of an entity that is deleted already are to go. `after` is how far it
-- has come: the last resource (of an entity) or entity (of a resource).
CREATE TABLE spread (
  ns       INTEGER NOT NULL REFERENCES namespace (key),
  kind     TEXT    NOT NULL CHECK (kind IN ('flag', 'delete')),
  entity   TEXT    NOT NULL,
  resource TEXT    NOT NULL,
  after    TEXT    NOT NULL,
  PRIMARY KEY (ns, kind, entity, resource)
) STRICT, WITHOUT ROWID;

-- How far the sweep has come, for all processes: not before `due` does it go on, and `seen` is the time of the last look. A sweep
-- acts on the earlier of two looks, so that one clock that is ahead forgets nothing.
CREATE TABLE sweep (
  id       INTEGER PRIMARY KEY CHECK (id = 1),
  seen     INTEGER NOT NULL,
  due      INTEGER NOT NULL,
  position TEXT    NOT NULL
) STRICT;

-- Hours that are over, one row per bucket and hour, the oldest first. `used` is what was used of each limit, in millitokens:
-- `rpm:1000,tpm:500000`. Smaller than the bucket it may come from: forgetting a bucket never makes the file larger.
CREATE TABLE usage_hour (
  hour     INTEGER NOT NULL,
  ns       INTEGER NOT NULL REFERENCES namespace (key),
  entity   TEXT    NOT NULL,
  resource TEXT    NOT NULL,
  events   INTEGER NOT NULL,
  used     TEXT    NOT NULL,
  PRIMARY KEY (hour, ns, entity, resource)
) STRICT, WITHOUT ROWID;
INSERT INTO usage_hour (hour, ns, entity, resource, events, used)
  SELECT hour, ns, entity, resource, sum(CASE counter WHEN '' THEN amount ELSE 0 END),
         coalesce(group_concat(CASE counter WHEN '' THEN NULL ELSE counter || ':' || amount END), '')
    FROM usage GROUP BY hour, ns, entity, resource;
DROP TABLE usage;
ALTER TABLE usage_hour RENAME TO usage;
CREATE INDEX usage_entity ON usage (ns, entity, hour, resource);
CREATE INDEX usage_resource ON usage (ns, resource, hour, entity);

-- How many rows of usage there are: they have a bound.
INSERT INTO meta (name, value) SELECT 'usage_rows', count(*) FROM usage;
CREATE TRIGGER usage_added AFTER INSERT ON usage
  BEGIN UPDATE meta SET value = value + 1 WHERE name = 'usage_rows'; END;
CREATE TRIGGER usage_removed AFTER DELETE ON usage
  BEGIN UPDATE meta SET value = value - 1 WHERE name = 'usage_rows'; END;

-- Open hours of a resource in the order of its usage, so that a page of it costs its rows and no more.
CREATE INDEX bucket_hour ON bucket (ns, resource, hour, entity);
