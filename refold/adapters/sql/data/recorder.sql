-- The statements of recorder.py and tree.py, with `?` for values.  `{name}` is the
-- statement of that name, else a table, or is filled in where it is used.

-- name: stream
user_id=? AND session_id=? AND stream=?

-- name: columns
seq, type, ts, event_id, token_estimate, schema_version, hash, body, first_digest

-- The user is named, not found in the row: an engine that spreads users over machines
-- then knows where to look.
-- name: before
(SELECT b.hash FROM {events} b WHERE b.user_id=?
  AND b.session_id=e.session_id AND b.stream=e.stream AND b.seq=e.seq-1)

-- In the statement itself: what is read is of a moment before its session was erased.
-- name: live
NOT EXISTS (SELECT 1 FROM {heads} h WHERE h.user_id=? AND h.session_id=?
  AND h.stream='main' AND h.status='erased')

-- name: head
SELECT seq, hash, status, state, key_check, tokens, created_at, updated_at
FROM {heads} WHERE {stream}

-- name: knows
SELECT seq FROM {heads} WHERE user_id=? LIMIT 1

-- name: uses
SELECT address, first_seq, last_seq FROM {receipts} WHERE {stream} AND address IN ({})

-- name: view
SELECT through_seq, derived_seq, body, main_spans, derived_spans FROM {views}
WHERE user_id=? AND session_id=? AND name=? AND {live}

-- The hash of the row before is asked for where that is not in the page itself.
-- name: page
SELECT {columns}, CASE WHEN seq=? THEN {before} END FROM {events} e
WHERE {stream} AND {live} AND seq>?

-- name: plain
SELECT user_id, session_id, stream, seq, type, ts, token_estimate, schema_version,
  event_id, hash FROM {events} e
WHERE user_id=? AND session_id=? AND {live} AND (stream, seq)>(?, ?)
ORDER BY stream, seq LIMIT ?

-- name: scattered
SELECT {columns}, {before} FROM {events} e WHERE {stream} AND {live} AND seq>?

-- name: range
SELECT {columns}, CASE WHEN seq=? THEN {before} END FROM {events} e
WHERE {stream} AND {live} AND seq BETWEEN ? AND ?

-- Only under the key that its session has, of nobody who is frozen; and in the place of
-- the one it replaces.
-- name: save
INSERT INTO {views} AS v (user_id, session_id, name, through_seq, derived_seq, body,
  main_spans, derived_spans)
SELECT h.user_id, h.session_id, ?, ?, ?, ?, ?, ? FROM {heads} h
WHERE {stream} AND key_check=? AND status IN ('open', 'closed')
  AND (?=0 OR EXISTS (SELECT 1 FROM {views}
    WHERE user_id=? AND session_id=? AND name=?))

-- name: replace
ON CONFLICT (user_id, session_id, name) DO UPDATE SET
  through_seq=excluded.through_seq, derived_seq=excluded.derived_seq,
  body=excluded.body, main_spans=excluded.main_spans,
  derived_spans=excluded.derived_spans
WHERE v.through_seq=?
RETURNING 1

-- name: event_row
e.seq, e.type, e.ts, e.event_id, e.token_estimate, e.schema_version, e.hash,
  e.body, e.first_digest

-- Every part has the columns of an event; in those of head and view are others.
-- name: first
WITH v AS (SELECT through_seq, derived_seq, body, main_spans, derived_spans
  FROM {views} WHERE user_id=? AND session_id=? AND name=?)
SELECT 0, seq, status, created_at, key_check, tokens, updated_at, hash, state,
  CAST(NULL AS bytea), CAST(NULL AS bytea) FROM {heads} WHERE {stream}
UNION ALL
SELECT 1, through_seq, '', derived_seq, CAST(NULL AS bytea), 0, 0,
  CAST(NULL AS bytea), body,
  CAST(NULL AS bytea), CAST(NULL AS bytea) FROM v

-- name: free
held.expires_at <= :now OR held.owner = excluded.owner

-- name: take
INSERT INTO {table} AS held
  (user_id, session_id, stream, owner, expires_at, pending)
VALUES (:user_id, :session_id, :stream, :owner, :until, 0)
ON CONFLICT (user_id, session_id, stream) DO UPDATE SET
  owner = CASE WHEN {free} THEN excluded.owner ELSE held.owner END,
  expires_at = CASE WHEN {free} THEN excluded.expires_at ELSE held.expires_at END,
  pending = CASE WHEN {free} THEN 0 ELSE 1 END
RETURNING owner

-- The leaves last, of what was found: they may be on another machine.
-- name: sealed
WITH found AS MATERIALIZED (SELECT s.seq, s.leaf, s.positions, s.receipts, e.hash
  FROM {seals} s LEFT JOIN {events} e ON e.user_id=s.user_id
    AND e.session_id=s.session_id AND e.stream=s.stream AND e.seq=s.seq
  WHERE s.user_id=? AND s.session_id=? AND s.stream=?)
SELECT f.seq, f.leaf, f.positions, f.receipts, l.hash, f.hash FROM found f
LEFT JOIN {leaves} l ON l.leaf=f.leaf AND l.erasure IS NULL ORDER BY f.seq

-- name: end
SELECT seq, hash, (SELECT max(seq) FROM {seals} WHERE {stream}) FROM {heads}
WHERE {stream} AND status<>'erased'

-- name: marks
SELECT seq, position, event_id, CASE WHEN seq=? THEN hash END FROM {events}
WHERE {stream} AND seq>? AND seq<=? ORDER BY seq LIMIT ?

-- name: first_uses
SELECT address, first_seq, last_seq FROM {receipts}
WHERE {stream} AND first_seq>? AND first_seq<=?
