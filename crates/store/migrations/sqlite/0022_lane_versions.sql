-- 0022_lane_versions.sql: a version per lane, so that a record that is retried late does not overwrite what is newer.
ALTER TABLE lanes ADD COLUMN version INTEGER NOT NULL DEFAULT 0;
