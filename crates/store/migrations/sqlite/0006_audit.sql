-- 0006_audit.sql: who changed what, when, from where.
CREATE TABLE audit (
  seq     INTEGER PRIMARY KEY,
  at_ms   INTEGER NOT NULL,
  actor   TEXT    NOT NULL,
  address TEXT,
  action  TEXT    NOT NULL,
  subject TEXT    NOT NULL,
  tenant  TEXT,
  before  TEXT,  -- without secrets
  after   TEXT
) STRICT;

CREATE INDEX audit_by_tenant ON audit (tenant, seq);
