-- The statements of recorder.py and tree.py, with `?` or `:name` for values.  `{name}` is the
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
SELECT address, first_seq, last_seq FROM {receipts} WHERE {stream} AND address IN ({keys})

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

-- A reader that has the events of a view reads no span of it.
-- name: spans_unless_known
CASE WHEN through_seq=? AND derived_seq=? THEN '[]' ELSE main_spans END AS main_spans,
  CASE WHEN through_seq=? AND derived_seq=? THEN '[]' ELSE derived_spans END
  AS derived_spans

-- Every part has the columns of an event; in those of head and view are others.
-- name: first
WITH v AS (SELECT through_seq, derived_seq, body, {spans}
  FROM {views} WHERE user_id=? AND session_id=? AND name=?)
SELECT 0, seq, status, created_at, key_check, tokens, updated_at, hash, state,
  CAST(NULL AS bytea), CAST(NULL AS bytea) FROM {heads} WHERE {stream}
UNION ALL
SELECT 1, through_seq, '', derived_seq, CAST(NULL AS bytea), 0, 0,
  CAST(NULL AS bytea), body,
  CAST(NULL AS bytea), CAST(NULL AS bytea) FROM v

-- name: ends
SELECT user_id, session_id, stream, seq FROM {heads}
WHERE (user_id, session_id, stream)>(?, ?, ?) AND status<>'erased'
ORDER BY user_id, session_id, stream LIMIT ?

-- name: sessions
SELECT user_id, session_id, seq, status, tokens, created_at, updated_at FROM {heads}
WHERE stream=?

-- Sessions that lists show: none that was erased, and none of Refold's own.
-- name: listed
h.stream='main' AND h.status<>'erased'
  AND substr(h.session_id, 1, 1)<>'_' {labelled_too}

-- Those of a user.
-- name: in_lists
h.user_id=? AND {listed}

-- Those of a user, or of all users.
-- name: listed_heads
SELECT h.user_id, h.session_id, h.seq, h.status, h.tokens, h.created_at, h.updated_at
FROM {heads} h WHERE {heads_of_user} {listed}

-- name: count_listed
SELECT count(*) FROM {heads} h WHERE {in_lists}

-- name: by_name
SELECT h.session_id, h.seq, h.status, h.tokens, h.created_at, h.updated_at, 0
FROM {heads} h WHERE {in_lists}

-- Each with the time of its newest event.  A label is no activity: of the last events,
-- the newest one counts that records no state and no redaction.  That is one lookup for
-- most sessions, and a bounded number for all.
-- name: by_time
WITH listed AS MATERIALIZED (
  SELECT h.session_id, h.seq, h.status, h.tokens, h.created_at, h.updated_at,
    coalesce((SELECT e.ts FROM {events} e WHERE e.user_id=?
      AND e.session_id=h.session_id AND e.stream='main' AND e.seq>h.seq-16
      AND e.type NOT IN ('state', 'redaction_applied')
      ORDER BY e.seq DESC LIMIT 1), h.updated_at) AS newest
  FROM {heads} h WHERE {in_lists})
SELECT session_id, seq, status, tokens, created_at, updated_at, newest FROM listed

-- name: listed_names
SELECT h.session_id FROM {heads} h WHERE {in_lists} AND h.session_id IN ({names})

-- name: labelled
AND session_id IN (SELECT session_id FROM {labels} WHERE user_id=? AND address=?)

-- name: names
SELECT stream FROM {heads} WHERE user_id=? AND session_id=?

-- name: blob
SELECT body FROM {blobs} WHERE user_id=? AND address=? AND {live}

-- name: several_blobs
SELECT address, body FROM {blobs} WHERE user_id=? AND address IN ({addresses}) AND {live}

-- name: blob_facts
SELECT session_id, size FROM {blobs} WHERE user_id=? AND address=?

-- Of all sessions of a user.
-- name: views_named
SELECT session_id, through_seq, derived_seq, body FROM {views}
WHERE {of_sessions}

-- name: derived_seqs
SELECT session_id, sum(seq) FROM {heads}
WHERE {of_sessions} GROUP BY session_id

-- name: view_names
SELECT name FROM {views} WHERE user_id=? AND session_id=? ORDER BY name

-- name: share_places
SELECT user_id, session_id, name FROM {views}
WHERE user_id=? AND name LIKE ? ORDER BY session_id, name

-- name: labels_of
SELECT name, address FROM {labels} WHERE user_id=? AND session_id=?

-- name: renew
UPDATE {leases} SET owner=:next_owner, expires_at=:now + :period, period=:period
WHERE user_id=:user_id AND session_id=:session_id AND stream=:stream AND owner=:owner

-- name: lease
SELECT owner, expires_at, period FROM {leases}
WHERE user_id=:user_id AND session_id=:session_id AND stream=:stream

-- The row stays as it is until the commit, so nobody takes the lease before that.
-- name: fence
SELECT 1 FROM {leases} WHERE {stream} AND owner=? {locked}

-- name: fenced
AND EXISTS (SELECT 1 FROM {leases} WHERE {stream} AND owner=?)

-- name: release
DELETE FROM {leases} WHERE {stream} AND owner=? RETURNING pending

-- What is behind a view: inside, for a COALESCE around it would keep row-level security
-- from the index.
-- name: behind_view
SELECT * FROM (SELECT {part}, {event_row},
  CASE WHEN e.seq=(SELECT coalesce(max({known}), 0) FROM v)+1 THEN {before} END
  FROM {events} e WHERE {stream} AND e.seq>(SELECT coalesce(max({known}), 0) FROM v)
  ORDER BY e.seq LIMIT ?) {known}

-- It ended, or ends later than a correct clock can have written, or is the owner's.
-- name: free
held.expires_at <= :now OR held.expires_at - 2 * held.period > :now
  OR held.owner = excluded.owner

-- name: take
INSERT INTO {leases} AS held
  (user_id, session_id, stream, owner, expires_at, pending, period)
VALUES (:user_id, :session_id, :stream, :owner, :until, 0, :period)
ON CONFLICT (user_id, session_id, stream) DO UPDATE SET
  owner = CASE WHEN {free} THEN excluded.owner ELSE held.owner END,
  expires_at = CASE WHEN {free} THEN excluded.expires_at ELSE held.expires_at END,
  period = CASE WHEN {free} THEN excluded.period ELSE held.period END,
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

-- By position, as far as that is `{settled}`.
-- name: positioned
SELECT position, user_id, session_id, stream, {columns}, (SELECT b.hash FROM {events} b
  WHERE b.user_id=e.user_id AND b.session_id=e.session_id AND b.stream=e.stream
    AND b.seq=e.seq-1) FROM {events} e
WHERE position>? AND position<=? AND {settled} AND NOT EXISTS (SELECT 1 FROM {heads} h
  WHERE h.user_id=e.user_id AND h.session_id=e.session_id AND h.stream='main'
    AND h.status='erased')
ORDER BY position LIMIT ?

-- name: settled_position
SELECT max(position) FROM {events} WHERE {settled}

-- name: ends_of_log
SELECT (SELECT max(position) FROM {events} WHERE position>0),
  ({settled_position} AND position>0)

-- name: drop_views
DELETE FROM {views} WHERE user_id=? AND session_id=?

-- Sizes of what is in a `{scope}`, rates since so long ago.  No figure counts sessions of
-- Refold's own, which `ids.is_internal` tells by their first character.
-- name: size_of_heads
SELECT count(DISTINCT user_id) AS users,
  count(*) FILTER (WHERE stream='main' AND substr(session_id, 1, 1)<>'_') AS sessions,
  count(*) FILTER (WHERE stream<>'main') AS derived_streams,
  coalesce(sum(tokens) FILTER (WHERE stream='main'), 0) AS tokens,
  count(*) FILTER (WHERE stream='main' AND substr(session_id, 1, 1)<>'_'
    AND updated_at>:last_hour) AS sessions_last_hour,
  count(*) FILTER (WHERE stream='main' AND substr(session_id, 1, 1)<>'_'
    AND updated_at>:last_day) AS sessions_last_day
FROM {heads} WHERE {scope}

-- name: size_of_events
SELECT count(*) AS events, coalesce(sum(length(body)), 0) AS event_bytes,
  count(*) FILTER (WHERE ts>:last_hour) AS events_last_hour,
  coalesce(sum(length(body)) FILTER (WHERE ts>:last_hour), 0)
    AS event_bytes_last_hour,
  count(*) FILTER (WHERE ts>:last_day) AS events_last_day,
  coalesce(sum(length(body)) FILTER (WHERE ts>:last_day), 0) AS event_bytes_last_day
FROM {events} WHERE {scope}

-- name: size_of_views
SELECT count(*) AS views, coalesce(sum(length(body)), 0) AS view_bytes
FROM {views} WHERE {scope}

-- name: size_of_blobs
SELECT count(*) AS blobs, coalesce(sum(size), 0) AS blob_bytes
FROM {blobs} WHERE {scope}

-- Stored views of strategies, and how many events each is behind the heads of its
-- session; in the names of others is a `-`.
-- name: behind_heads
SELECT v.user_id, v.session_id, v.name,
  m.seq - v.through_seq + coalesce(d.seq, 0) - v.derived_seq AS behind
FROM (SELECT * FROM {views} WHERE {scope}) v
JOIN {heads} m ON m.user_id=v.user_id AND m.session_id=v.session_id
  AND m.stream='main'
LEFT JOIN {heads} d ON d.user_id=v.user_id AND d.session_id=v.session_id
  AND d.stream=v.name
WHERE m.status<>'erased' AND v.name NOT LIKE '%-%'

-- name: lag
SELECT name AS fingerprint, count(*) AS views,
  count(*) FILTER (WHERE behind > 0) AS behind, sum(behind) AS events,
  max(behind) AS most
FROM ({behind_heads}) of GROUP BY name ORDER BY name

-- name: lagging
SELECT user_id, session_id, name, behind FROM ({behind_heads}) of
WHERE behind>=:by AND (user_id, session_id, name)>(:user, :session, :name)
ORDER BY user_id, session_id, name LIMIT :limit

-- Streams whose head is not sealed.
-- name: of_unsealed
FROM {heads} h WHERE status<>'erased' AND seq>coalesce((SELECT max(s.seq)
  FROM {seals} s WHERE s.user_id=h.user_id AND s.session_id=h.session_id
    AND s.stream=h.stream), 0)

-- name: unsealed
SELECT count(*) {of_unsealed}

-- name: behind
SELECT user_id, session_id, stream {of_unsealed}
  AND (user_id, session_id, stream)>(?, ?, ?)
ORDER BY user_id, session_id, stream LIMIT ?

-- name: moved
SELECT position, user_id, session_id, stream FROM {events}
WHERE position>? AND position<=? ORDER BY position LIMIT ?

-- name: marked
SELECT user_id, session_id, stream FROM {heads} WHERE status='erased'

-- name: lost
SELECT user_id, session_id, stream, max(seq) FROM {seals} s
WHERE NOT EXISTS (SELECT 1 FROM {heads} h WHERE h.user_id=s.user_id
  AND h.session_id=s.session_id AND h.stream=s.stream)
GROUP BY user_id, session_id, stream LIMIT ?

-- Where the head of the stream is live.
-- name: seal
INSERT INTO {seals} (user_id, session_id, stream, seq, leaf, positions, receipts)
SELECT user_id, session_id, stream, :seq, :leaf, :positions, :receipts FROM {heads}
WHERE user_id=:user_id AND session_id=:session_id AND stream=:stream
  AND status<>'erased' {locked}

-- name: tree_head
SELECT size, root, sealed_at, position, key_id, signature, peaks FROM {tree_heads}

-- name: trees
{tree_head} WHERE size>? ORDER BY size

-- name: newest_tree
{tree_head} WHERE size>0 ORDER BY size DESC LIMIT 1

-- name: leaf_hashes
SELECT leaf, hash FROM {leaves} WHERE leaf>? AND leaf<? ORDER BY leaf LIMIT ?

-- name: unowned
SELECT l.leaf FROM {leaves} l LEFT JOIN {seals} s ON s.leaf=l.leaf
WHERE l.erasure IS NULL AND s.leaf IS NULL ORDER BY l.leaf LIMIT ?

-- name: erasures_of_leaves
SELECT DISTINCT erasure FROM {leaves} WHERE erasure IS NOT NULL

-- name: erased_leaves
SELECT hash FROM {leaves} WHERE erasure=? ORDER BY leaf

-- name: subject
SELECT ref, user_ref, status, epoch FROM {subjects}

-- name: subject_of
{subject} WHERE ref=?

-- name: changed_subjects
{subject} WHERE status<>'live' OR epoch>1 ORDER BY ref

-- name: change_subject
UPDATE {subjects} SET user_ref=:user_ref, status=:status, epoch=:epoch WHERE ref=:ref

-- name: add_subject
INSERT INTO {subjects} (ref, user_ref, status, epoch)
VALUES (:ref, :user_ref, :status, :epoch) ON CONFLICT DO NOTHING

-- When the newest event was written, by its writer's clock.
-- name: newest_stamp
SELECT h.updated_at FROM {events} e JOIN {heads} h ON h.user_id=e.user_id
  AND h.session_id=e.session_id AND h.stream=e.stream ORDER BY e.position DESC LIMIT 1

-- name: setting
SELECT value FROM {settings} WHERE name=?

-- name: put_setting
INSERT INTO {settings} (name, value) VALUES (:name, :value)
ON CONFLICT (name) DO UPDATE SET value=excluded.value

-- name: add_setting
INSERT INTO {settings} (name, value) VALUES (:name, '0') ON CONFLICT DO NOTHING
