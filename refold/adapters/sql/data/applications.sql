-- The statements of applications of the eventsourcing library.  `{name}` is filled in
-- where a statement is used.

-- name: take_places
UPDATE es_positions SET last_id = last_id + ? WHERE name = ? RETURNING last_id

-- The row stays locked until the commit: who takes later places commits later.
-- name: sequenced
WITH place AS (
  UPDATE {schema}.es_positions SET last_id = last_id + %(count)s
  WHERE name = %(name)s
  RETURNING last_id - %(count)s AS base, pg_notify(%(name)s, '')
)
INSERT INTO {table} ({columns})
SELECT base + n, originator_id, originator_version, topic, state
FROM place, {rows} WITH ORDINALITY
  AS new (originator_id, originator_version, topic, state, n)
RETURNING notification_id

-- name: plain
INSERT INTO {table} ({columns}) SELECT * FROM {rows}

-- name: unnested
unnest(%(originators)b::{kind}[], %(versions)b::bigint[], %(topics)b::text[],
  %(states)b::bytea[])

-- name: find
SELECT {what} FROM {table}
WHERE originator_id = %s AND originator_version = %s AND state = %b

-- name: track
INSERT INTO {table} (application_name, notification_id) VALUES (:name, :id)
ON CONFLICT (application_name) DO UPDATE SET notification_id = excluded.notification_id
WHERE {table}.notification_id < excluded.notification_id
RETURNING notification_id
