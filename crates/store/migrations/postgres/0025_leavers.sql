-- 0025_leavers.sql: which node has handed a delivery over, so that a successor does not wait for the record of a node that is gone.

-- NULL for what was handed over before this step: it is waited for until its deadline.
ALTER TABLE handed_over ADD COLUMN node BYTEA;
