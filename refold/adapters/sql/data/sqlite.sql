-- The statements of sqlite.py; those of `guard_` are made in this order.

-- The highest position of a row that was deleted: none is given out twice.
-- name: floor
(SELECT CAST(value AS INTEGER) FROM settings WHERE name='floor')

-- name: heads
SELECT stream, seq, hash, status, state, key_check, tokens, created_at, updated_at
FROM heads
WHERE user_id=? AND session_id=?

-- name: row
UPDATE events SET body=?, first_digest=?
WHERE user_id=? AND session_id=? AND stream=? AND seq=?

-- name: state
UPDATE heads SET state=?, key_check=? WHERE user_id=? AND session_id=? AND stream=?

-- name: reopen
UPDATE heads SET status='open', key_check=?
WHERE user_id=? AND session_id=? AND stream=?

-- name: drop_blob
DELETE FROM blobs WHERE user_id=? AND address=?

-- name: drop_views
DELETE FROM views WHERE user_id=? AND session_id=?

-- name: head
SELECT seq, hash, status, state, key_check, tokens, created_at, updated_at FROM heads
WHERE user_id=? AND session_id=? AND stream=?

-- name: move_head
UPDATE heads SET seq=?, hash=?, status=?, state=?, key_check=?, tokens=?,
  created_at=?, updated_at=?
WHERE user_id=? AND session_id=? AND stream=? AND seq=? AND hash=?
  AND key_check=? AND status='open'

-- name: new_head
INSERT INTO heads (seq, hash, status, state, key_check, tokens, created_at,
  updated_at, user_id, session_id, stream)
SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?
WHERE CASE WHEN ?='main' THEN EXISTS (SELECT 1 FROM subjects
    WHERE ref=? AND status='live' AND epoch=?)
  AND NOT EXISTS (SELECT 1 FROM subjects WHERE ref=?)
  AND (?='' OR EXISTS (SELECT 1 FROM heads
    WHERE user_id=? AND session_id=? AND stream='main' AND status<>'erased'))
ELSE EXISTS (SELECT 1 FROM heads
  WHERE user_id=? AND session_id=? AND stream='main' AND status IN ('open', 'closed')
    AND key_check=?) END
ON CONFLICT DO NOTHING

-- name: subject
INSERT INTO subjects (ref, user_ref, status, epoch) VALUES (?, ?, 'live', ?)
ON CONFLICT DO NOTHING

-- name: event
INSERT INTO events (position, user_id, session_id, stream, seq, type, ts, event_id,
  token_estimate, schema_version, hash, body)
VALUES (max(coalesce((SELECT max(position) FROM events), 0),
            min(coalesce({floor}, 0), 4611686018427387904)) + 1,
  ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: blob
INSERT INTO blobs (user_id, address, size, created_at, body, session_id)
VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING

-- name: find_receipt
SELECT first_seq, last_seq FROM receipts
WHERE user_id=? AND session_id=? AND stream=? AND address=?

-- name: receipt
INSERT INTO receipts (user_id, session_id, stream, address, first_seq, last_seq)
VALUES (?, ?, ?, ?, ?, ?)

-- name: guard_again_update
DROP TRIGGER IF EXISTS events_refuse_update

-- name: guard_again_delete
DROP TRIGGER IF EXISTS events_refuse_delete

-- name: guard_again_floor
DROP TRIGGER IF EXISTS events_raise_floor

-- name: guard_update
CREATE TRIGGER events_refuse_update BEFORE UPDATE ON events WHEN NOT (
  EXISTS (SELECT 1 FROM settings WHERE name='rewriting')
  AND NEW.position IS OLD.position AND NEW.user_id IS OLD.user_id
    AND NEW.session_id IS OLD.session_id AND NEW.stream IS OLD.stream
    AND NEW.seq IS OLD.seq AND NEW.type IS OLD.type AND NEW.ts IS OLD.ts
    AND NEW.event_id IS OLD.event_id AND NEW.token_estimate IS OLD.token_estimate
    AND NEW.schema_version IS OLD.schema_version AND NEW.hash IS OLD.hash
  AND length(NEW.first_digest) IS 32
  AND NEW.first_digest IS coalesce(OLD.first_digest, NEW.first_digest))
BEGIN SELECT RAISE(ABORT, 'refold: events are immutable, UPDATE is refused'); END

-- name: guard_delete
CREATE TRIGGER events_refuse_delete BEFORE DELETE ON events WHEN NOT EXISTS (
  SELECT 1 FROM heads h WHERE h.user_id=OLD.user_id AND h.session_id=OLD.session_id
    AND h.stream=OLD.stream AND h.status='erased')
BEGIN SELECT RAISE(ABORT, 'refold: events are immutable, DELETE is refused'); END

-- name: guard_floor
CREATE TRIGGER events_raise_floor AFTER DELETE ON events
  WHEN OLD.position > coalesce({floor}, 0)
BEGIN INSERT INTO settings (name, value) VALUES ('floor', OLD.position)
  ON CONFLICT (name) DO UPDATE SET value=excluded.value; END

-- name: refuse_write
CREATE TRIGGER moved_{table}_{act} BEFORE {act} ON {table}
BEGIN SELECT RAISE(ABORT, '{message}'); END

-- The events of each span that a column of a view names; a CROSS JOIN is done in the
-- order in which it is written.
-- name: each_span
SELECT {part}, {event_row}, CASE WHEN e.seq=json_extract(s.value, '$[0]')
  THEN {before} END
FROM v CROSS JOIN json_each(v.{spans}) s CROSS JOIN {events} e
WHERE user_id=? AND session_id=? AND stream=?
  AND e.seq BETWEEN json_extract(s.value, '$[0]') AND json_extract(s.value, '$[1]')
