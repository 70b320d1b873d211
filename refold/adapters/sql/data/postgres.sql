-- The statements of postgres.py; those of `guard_` are made in this order.  `{name}` is the statement of that name, or is filled
-- in where the statement is used; values are never written into a text.

-- name: moment
SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)

-- name: head
SELECT seq, hash, status, state, key_check, tokens, created_at, updated_at
FROM refold.heads
WHERE user_id=%s AND session_id=%s AND stream=%s

-- name: move_head
UPDATE refold.heads SET seq=:seq, hash=:hash, status=:status,
  state=:state, key_check=:key_check, tokens=:tokens,
  created_at=:created_at, updated_at=:updated_at
WHERE user_id=:user AND session_id=:session AND stream=:stream
  AND seq=:expected AND hash=:expected_hash AND key_check=:key_check
  AND status='open'
RETURNING 1

-- name: new_head
INSERT INTO refold.heads (user_id, session_id, stream, seq, hash, status, state,
  key_check, tokens, created_at, updated_at)
SELECT :user, :session, :stream, :seq, :hash, :status, :state,
  :key_check, :tokens, :created_at, :updated_at
{where}
ON CONFLICT DO NOTHING
RETURNING 1

-- A main stream begins where its user is live, which is locked so that an erasure waits
-- for it, and where no such session was erased.
-- name: subject
added AS (INSERT INTO refold.subjects (ref, user_ref, status, epoch)
  VALUES (:user_ref, :user_ref, 'live', :epoch)
  ON CONFLICT DO NOTHING RETURNING 1),
live AS (SELECT 1 FROM refold.subjects WHERE ref=:user_ref AND status='live'
  AND epoch=:epoch FOR SHARE)

-- name: where_live
FROM (SELECT 1 AS one FROM added UNION ALL SELECT 1 FROM live) subject {origin}
WHERE NOT EXISTS (SELECT 1 FROM refold.subjects WHERE ref=:session_ref)

-- A fork, where what it goes on from is not erased, and is there before the fork is;
-- locked after the subject, as whoever else locks both.
-- name: origin
CROSS JOIN LATERAL (SELECT 1 FROM refold.heads WHERE user_id=:user
  AND session_id=:origin AND stream='main' AND status<>'erased' AND subject.one=1
  FOR SHARE) origin

-- name: where_main
FROM (SELECT 1 FROM refold.heads WHERE user_id=:user AND session_id=:session
  AND stream='main' AND status IN ('open', 'closed') AND key_check=:key_check
  FOR SHARE) main

-- name: into_events
INSERT INTO refold.events (position, user_id, session_id, stream, seq, type, ts,
  event_id, token_estimate, schema_version, hash, body)
SELECT (pg_current_xact_id()::text::bigint << 20) +

-- name: event
{into_events} :base + 1, :user, :session, :stream, :seq, :type,
  :ts, :event_id, :estimate, :version, :hash, :body
FROM head

-- name: events
{into_events} :base + e.n, :user, :session, :stream, e.seq, e.type,
  e.ts, e.event_id, e.token_estimate, e.schema_version, e.hash, e.body
FROM head, unnest(:seqs, :types, :times,
  :ids, :estimates, :versions, :hashes,
  :bodies) WITH ORDINALITY AS e(seq, type, ts, event_id, token_estimate,
  schema_version, hash, body, n)

-- name: blobs
blobs AS (INSERT INTO refold.blobs (user_id, address, size, created_at, body,
  session_id)
  SELECT :user, b.address, b.size, :updated_at, b.body, :session
  FROM head, unnest(:addresses, :sizes, :blobs)
    AS b(address, size, body)
  ON CONFLICT DO NOTHING)

-- name: receipt
receipt AS (INSERT INTO refold.receipts (user_id, session_id, stream, address,
  first_seq, last_seq)
  SELECT :user, :session, :stream, r.address, r.first, r.last
  FROM head, unnest(:receipts, :firsts, :lasts) AS r(address, first, last))

-- The heads of many streams: locked in the order that they are given in, which is one
-- for all writers, so that no two of them deadlock; then found again where they lie,
-- and by name: in the parts of a table rows of others lie at the same places.
-- name: move_heads
batch AS (SELECT * FROM unnest(:seqs_after, :head_hashes, :statuses, :states, :checks,
    :token_sums, :begins, :ends, :users, :sessions, :streams, :expecteds,
    :expected_hashes) WITH ORDINALITY AS b(seq, hash, status, state, key_check, tokens,
    created_at, updated_at, user_id, session_id, stream, expected, expected_hash, n)),
held AS (SELECT batch.*, h.place FROM batch CROSS JOIN LATERAL (
  SELECT h.ctid AS place FROM refold.heads h
  WHERE h.user_id=batch.user_id AND h.session_id=batch.session_id
    AND h.stream=batch.stream AND h.seq=batch.expected AND h.hash=batch.expected_hash
    AND h.key_check=batch.key_check AND h.status='open' FOR NO KEY UPDATE) h),
head AS (UPDATE refold.heads h SET seq=b.seq, hash=b.hash, status=b.status,
    state=b.state, key_check=b.key_check, tokens=b.tokens, created_at=b.created_at,
    updated_at=b.updated_at
  FROM held b WHERE h.ctid=ANY(ARRAY(SELECT place FROM held)) AND h.ctid=b.place
    AND h.user_id=b.user_id AND h.session_id=b.session_id AND h.stream=b.stream
  RETURNING b.*),

-- name: receipts_of_heads
receipt AS (INSERT INTO refold.receipts (user_id, session_id, stream, address,
  first_seq, last_seq)
  SELECT user_id, session_id, stream, r.address, r.first, r.last
  FROM unnest(:receipt_of, :receipts, :firsts, :lasts) AS r(n, address, first, last)
    JOIN head USING (n)),

-- name: events_of_heads
written AS ({into_events} e.place, h.user_id, h.session_id,
    h.stream, e.seq, e.type, e.ts, e.event_id, e.token_estimate, e.schema_version,
    e.hash, e.body
  FROM unnest(:batch_of, :seqs, :types, :times, :ids, :estimates, :versions, :hashes,
    :bodies) WITH ORDINALITY AS e(n, seq, type, ts, event_id, token_estimate,
    schema_version, hash, body, place) JOIN head h ON h.n=e.n)
SELECT n FROM head

-- name: find_receipt
SELECT first_seq, last_seq FROM refold.receipts
WHERE user_id=%s AND session_id=%s AND stream=%s AND address=%b

-- name: last_hash
SELECT hash FROM refold.events
WHERE user_id=%s AND session_id=%s AND stream=%s AND seq=%s

-- Keys are destroyed on the strength of a commit, whatever appends are content with.
-- name: durable
SELECT set_config('synchronous_commit', 'on', true)
WHERE current_setting('synchronous_commit') IN ('off', 'local')

-- An event changes in nothing but its body, while its session is rewritten; and goes
-- only once its head says that it was erased.
-- name: guard_function
CREATE OR REPLACE FUNCTION refold.refuse_change() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN
  IF TG_OP = 'UPDATE' AND current_setting('refold.rewriting', true) = 'on' THEN
    IF ROW(NEW.position, NEW.user_id, NEW.session_id, NEW.stream, NEW.seq, NEW.type,
         NEW.ts, NEW.event_id, NEW.token_estimate, NEW.schema_version, NEW.hash)
       IS NOT DISTINCT FROM
       ROW(OLD.position, OLD.user_id, OLD.session_id, OLD.stream, OLD.seq, OLD.type,
         OLD.ts, OLD.event_id, OLD.token_estimate, OLD.schema_version, OLD.hash)
       AND NEW.first_digest = coalesce(OLD.first_digest, sha256(OLD.body))
    THEN RETURN NEW; END IF;
  END IF;
  IF TG_OP = 'DELETE' THEN
    IF EXISTS (SELECT 1 FROM refold.heads h WHERE h.user_id = OLD.user_id
      AND h.session_id = OLD.session_id AND h.stream = OLD.stream
      AND h.status = 'erased')
    THEN RETURN OLD; END IF;
  END IF;
  RAISE EXCEPTION 'refold: events are immutable, % is refused', TG_OP;
END $$

-- Those of a part of a table as its own; each has to be on all parts of it.
-- name: triggers
SELECT t.tgname, n.nspname || '.' || c.relname,
  t.tgenabled IN ('O', 'A') AND t.tgqual IS NULL AND t.tgattr::text = ''
    AND count(*) OVER (PARTITION BY t.tgname, c.oid)
      = greatest(1, (SELECT count(*) FROM pg_partition_tree(c.oid))),
  t.tgtype::int, p.prosrc
FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
JOIN pg_class c ON c.oid = coalesce(pg_partition_root(t.tgrelid), t.tgrelid)
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'refold' AND NOT t.tgisinternal

-- name: session_heads
SELECT stream, seq, hash, status, state, key_check, tokens, created_at, updated_at
FROM refold.heads
WHERE user_id=%s AND session_id=%s ORDER BY stream COLLATE "C" FOR UPDATE

-- name: replace_rows
UPDATE refold.events e SET body=n.body, first_digest=n.first_digest
FROM unnest(%(streams)s::text[], %(seqs)s::int8[], %(bodies)s::bytea[],
  %(firsts)s::bytea[]) AS n(stream, seq, body, first_digest)
WHERE e.user_id=%(user)s AND e.session_id=%(session)s AND e.stream=n.stream
  AND e.seq=n.seq

-- name: state
UPDATE refold.heads SET state=%b, key_check=%b
WHERE user_id=%s AND session_id=%s AND stream=%s

-- name: reopen
UPDATE refold.heads SET status='open', key_check=%b
WHERE user_id=%s AND session_id=%s AND stream=%s

-- name: drop_blobs
DELETE FROM refold.blobs WHERE user_id=%s AND address=ANY(%s)

-- name: drop_views
DELETE FROM refold.views WHERE user_id=%s AND session_id=%s

-- name: guard_change
CREATE OR REPLACE TRIGGER events_refuse_change BEFORE UPDATE OR DELETE
ON refold.events FOR EACH ROW EXECUTE FUNCTION refold.refuse_change()

-- name: guard_truncate
CREATE OR REPLACE TRIGGER events_refuse_truncate BEFORE TRUNCATE
ON refold.events FOR EACH STATEMENT EXECUTE FUNCTION refold.refuse_change()

-- What is encrypted cannot be compressed.
-- name: guard_stored_events
ALTER TABLE refold.events ALTER COLUMN body SET STORAGE EXTERNAL

-- name: guard_stored_blobs
ALTER TABLE refold.blobs ALTER COLUMN body SET STORAGE EXTERNAL

-- name: moved
CREATE OR REPLACE FUNCTION refold.refuse_write() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION USING MESSAGE = '{message}'; END $$

-- name: refuse_write
CREATE OR REPLACE TRIGGER moved BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE
ON {table} FOR EACH STATEMENT EXECUTE FUNCTION refold.refuse_write()

-- name: next
SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint

-- name: use_up
DO $$ BEGIN FOR n IN 1..{count} LOOP
  PERFORM pg_current_xact_id(); COMMIT;
END LOOP; END $$

-- The encoding, and whether the schema is there and another program's.
-- name: encoding_and_owner
SELECT current_setting('server_encoding'), to_regclass('refold.heads') IS NULL
  AND EXISTS (SELECT 1 FROM pg_tables WHERE schemaname = 'refold')

-- Columns of text and bytes that the planner has statistics of.
-- name: described
SELECT s.schemaname || '.' || s.tablename, s.attname, a.atttypid::regtype::text
FROM pg_stats s
JOIN pg_attribute a ON a.attname = s.attname
  AND a.atttypid IN ('text'::regtype, 'bytea'::regtype)
  AND a.attrelid = to_regclass(s.schemaname || '.' || s.tablename)
WHERE s.schemaname = %s

-- Whether something makes VACUUM keep rows that were deleted before a transaction id: a
-- transaction with a lower id in any database, since all snapshots see it as running; a
-- snapshot of this database or of a standby (without a database); a replication slot;
-- or a connection that begins, which the view of activity does not show yet.
-- name: has_older_transactions
SELECT pg_snapshot_xmin(pg_current_snapshot()) < %s::text::xid8
  OR EXISTS (SELECT FROM pg_stat_activity
    WHERE coalesce(datname = current_database(), true) AND pid <> pg_backend_pid()
      AND age(backend_xmin) >= age((%s::text::xid8)::xid))
  OR EXISTS (SELECT FROM pg_replication_slots
    WHERE age((%s::text::xid8)::xid) <= greatest(age(xmin), age(catalog_xmin)))
  OR EXISTS (SELECT FROM pg_locks l WHERE l.locktype = 'virtualxid'
    AND NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = l.pid))

-- name: size
SELECT coalesce(sum(pg_total_relation_size(oid)), 0) FROM pg_class
WHERE relkind = 'r' AND relnamespace = to_regnamespace('refold')

-- Positions below the oldest transaction that still runs.
-- name: settled
position < (pg_snapshot_xmin(pg_current_snapshot())::text::bigint << 20)

-- Answered over a pooler, the process is another one than the pooler named, or none is
-- named: then nothing is set, since it would be set for other clients.
-- name: connected
SELECT pg_backend_pid(), CASE WHEN pg_backend_pid() = %s::int THEN
  set_config('default_transaction_isolation', 'read committed', false) END, ({moment})

-- The events of each span that a column of a view names: a subquery for each, ordered,
-- else the planner may join the other way.
-- name: each_span
SELECT r.* FROM v CROSS JOIN LATERAL jsonb_array_elements(v.{spans}::jsonb) AS s(value)
CROSS JOIN LATERAL (SELECT {part}, {event_row},
    CASE WHEN e.seq=(s.value->>0)::int8 THEN {before} END FROM refold.events e
  WHERE user_id=? AND session_id=? AND stream=?
    AND e.seq BETWEEN (s.value->>0)::int8 AND (s.value->>1)::int8 ORDER BY e.seq) r

-- The number of the transaction that is open.
-- name: transaction
SELECT pg_current_xact_id()::text

-- Whether a transaction was committed, aborted, or is in progress; NULL if it is too old.
-- name: transaction_status
SELECT pg_xact_status(%s::text::xid8)
