-- What may be made anew at every install without anybody noticing.
CREATE OR REPLACE FUNCTION {schema}.posthaste_publish(
  type            text,
  data            text,
  tenant          text        DEFAULT NULL,
  version         text        DEFAULT NULL,
  idempotency_key text        DEFAULT NULL,
  ordering_key    text        DEFAULT NULL,
  deliver_at      timestamptz DEFAULT NULL,
  expires_at      timestamptz DEFAULT NULL,
  occurred_at     timestamptz DEFAULT NULL,
  id              uuid        DEFAULT NULL
) RETURNS uuid LANGUAGE plpgsql VOLATILE AS $posthaste$
DECLARE
  -- Not with RETURNING, which needs permission to read the table: an application has INSERT alone.
  new_id uuid := coalesce($10, pg_catalog.gen_random_uuid());
BEGIN
  INSERT INTO {schema}.posthaste_outbox
    (id, tenant, type, version, data, idempotency_key, ordering_key, deliver_at, expires_at, occurred_at)
  VALUES (new_id, $3, $1, $4, $2, $5, $6, $7, $8, $9);
  RETURN new_id;
END
$posthaste$;

-- Wakes relays once the transaction is committed, also after a plain INSERT. Many rows are one word.
CREATE OR REPLACE FUNCTION {schema}.posthaste_outbox_wake() RETURNS trigger LANGUAGE plpgsql AS $posthaste$
BEGIN
  PERFORM pg_catalog.pg_notify('posthaste_outbox', '');
  RETURN NULL;
END
$posthaste$;
