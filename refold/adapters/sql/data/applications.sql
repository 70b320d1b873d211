-- Statements of applications of the eventsourcing library.  Names in braces are filled
-- in where they are used.  A statement whose name ends in `_joined` writes all rows at
-- once, for PostgreSQL; SQLite executes the others for each row.

-- name: track
INSERT INTO {table} (application_name, notification_id) VALUES (?, ?)
ON CONFLICT (application_name) DO UPDATE SET notification_id = excluded.notification_id
WHERE {table}.notification_id < excluded.notification_id
RETURNING notification_id

-- name: take_ids
UPDATE {positions} SET last_id = last_id + ? WHERE name = ? RETURNING last_id

-- name: insert_numbered
INSERT INTO {events}
  (notification_id, originator_id, originator_version, topic, state)
VALUES (?, ?, ?, ?, ?)

-- name: insert_unnumbered
INSERT INTO {events} (originator_id, originator_version, topic, state)
VALUES (?, ?, ?, ?)

-- name: insert_numbered_joined
WITH taken AS (
  UPDATE {positions} SET last_id = last_id + %(count)s
  WHERE name = %(name)s RETURNING last_id - %(count)s AS before
)
INSERT INTO {events}
  (notification_id, originator_id, originator_version, topic, state)
SELECT taken.before + row.number, row.originator_id, row.version, row.topic, row.state
FROM taken, unnest(
  %(ids)b::{id_type}[], %(versions)b::bigint[], %(topics)b::text[], %(states)b::bytea[]
) WITH ORDINALITY AS row (originator_id, version, topic, state, number)
RETURNING notification_id

-- name: insert_unnumbered_joined
INSERT INTO {events} (originator_id, originator_version, topic, state)
SELECT * FROM unnest(
  %(ids)b::{id_type}[], %(versions)b::bigint[], %(topics)b::text[], %(states)b::bytea[]
)

-- name: find_numbered
SELECT notification_id FROM {events}
WHERE originator_id = ? AND originator_version = ? AND topic = ? AND state = ?

-- name: find_unnumbered
SELECT 0 FROM {events}
WHERE originator_id = ? AND originator_version = ? AND topic = ? AND state = ?
