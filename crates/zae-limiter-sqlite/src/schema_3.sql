-- Version 3. What files of limits manage, in parts whose text the store does not look into. `version` is the generation of
-- the last change.
CREATE TABLE managed (
  ns      INTEGER NOT NULL REFERENCES namespace (key),
  part    INTEGER NOT NULL CHECK (part >= 0),
  text    TEXT    NOT NULL,
  version INTEGER NOT NULL CHECK (version > 0),
  PRIMARY KEY (ns, part)
) STRICT, WITHOUT ROWID;
