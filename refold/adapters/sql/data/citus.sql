-- The statements of citus.py, with `?` for values.  Each names one user, or none.

-- name: move_head
UPDATE refold.heads SET seq=?, hash=?, status=?, state=?, key_check=?, tokens=?,
  created_at=?, updated_at=?
WHERE user_id=? AND session_id=? AND stream=? AND seq=? AND hash=? AND key_check=?
  AND status='open'

-- name: new_head
INSERT INTO refold.heads (seq, hash, status, state, key_check, tokens, created_at,
  updated_at, user_id, session_id, stream) VALUES {rows}

-- A main stream begins where its user is live, which is locked so that an erasure waits
-- for it, or is not known yet; and where no such session was erased.
-- name: live
SELECT status='live' AND epoch=? FROM refold.subjects WHERE ref=? FOR SHARE

-- name: gone
SELECT 1 FROM refold.subjects WHERE ref=?

-- name: new_subject
INSERT INTO refold.subjects (ref, user_ref, status, epoch) VALUES (?, ?, 'live', ?)

-- name: origin
SELECT 1 FROM refold.heads WHERE user_id=? AND session_id=? AND stream='main'
  AND status<>'erased' FOR SHARE

-- A derived stream begins beside a main one.
-- name: main
SELECT 1 FROM refold.heads WHERE user_id=? AND session_id=? AND stream='main'
  AND status IN ('open', 'closed') AND key_check=? FOR SHARE

-- name: blobs
INSERT INTO refold.blobs (user_id, session_id, created_at, address, body, size)
VALUES {rows} ON CONFLICT DO NOTHING

-- name: receipts
INSERT INTO refold.receipts (user_id, session_id, stream, address, first_seq, last_seq)
VALUES {rows}

-- There is no order of all events, and so no position.
-- name: events
INSERT INTO refold.events (position, user_id, session_id, stream, seq, type, ts,
  event_id, token_estimate, schema_version, body, hash) VALUES {rows}

-- name: engine
SELECT EXISTS (SELECT 1 FROM pg_extension WHERE extname = 'citus')

-- Whether what is there is spread, or nothing is there yet.
-- name: spreads
SELECT to_regclass('refold.heads') IS NULL OR EXISTS (SELECT 1 FROM pg_dist_partition
  WHERE logicalrelid = to_regclass('refold.heads'))

-- Tables with rows of users are spread by user, all alike.  Those whose rows change
-- with them in one commit Citus has to know too: it then commits both or none.
-- name: spread
DO $$ DECLARE one record; first text := 'none'; BEGIN
  FOR one IN SELECT c.oid::regclass::text AS name, EXISTS (SELECT 1 FROM pg_attribute a
      WHERE a.attrelid = c.oid AND a.attname = 'user_id') AS of_users,
    EXISTS (SELECT 1 FROM pg_dist_partition d WHERE d.logicalrelid = c.oid) AS known
    FROM pg_class c WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition
      AND c.relnamespace = 'refold'::regnamespace ORDER BY 3 DESC, 1
  LOOP
    IF one.known THEN NULL;
    ELSIF one.of_users THEN
      PERFORM create_distributed_table(one.name, 'user_id', colocate_with => first);
    ELSIF one.name NOT IN ('refold.settings', 'refold.audit') THEN
      PERFORM citus_add_local_table_to_metadata(one.name);
    END IF;
    IF one.of_users THEN first := one.name; END IF;
  END LOOP;
END $$

-- Of what was spread with its rows a copy stays on the coordinator, where nobody erases
-- it.  The trigger has to let it go, and is put back in the same transaction.
-- name: empty
DO $$ BEGIN
  CREATE OR REPLACE FUNCTION refold.refuse_change() RETURNS trigger LANGUAGE plpgsql
    AS 'BEGIN RETURN NULL; END';
  PERFORM truncate_local_data_after_distributing_table(logicalrelid)
    FROM pg_dist_partition
    WHERE partmethod = 'h' AND starts_with(logicalrelid::text, 'refold.');
END $$

-- name: tables
SELECT logicalrelid::oid::regclass::text FROM pg_dist_partition

-- Up to which hash of a user which machine has the rows.
-- name: machines
SELECT s.shardmaxvalue::int8, p.groupid FROM pg_dist_shard s
JOIN pg_dist_placement p USING (shardid)
WHERE s.logicalrelid = to_regclass('refold.heads') AND s.shardmaxvalue IS NOT NULL
ORDER BY 1

-- name: size
SELECT coalesce(sum(CASE WHEN EXISTS (SELECT 1 FROM pg_dist_partition d
    WHERE d.logicalrelid = c.oid AND d.partmethod = 'h')
  THEN citus_total_relation_size(c.oid) ELSE pg_total_relation_size(c.oid) END), 0)
FROM pg_class c
WHERE c.relkind = 'r' AND c.relnamespace = to_regnamespace('refold')

-- name: durable
SELECT bool_and(success) FROM run_command_on_workers($run$DO $$ BEGIN
  PERFORM set_config('synchronous_commit', 'on', true)
    WHERE current_setting('synchronous_commit') IN ('off', 'local');
  PERFORM pg_current_xact_id();
END $$ $run$)

-- Parts of the table on machines that have not both triggers, as they were made.
-- name: unguarded
SELECT count(*) FROM run_command_on_shards('refold.events', $$
  SELECT count(*) FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
  WHERE t.tgrelid = '%s'::regclass AND t.tgenabled IN ('O', 'A') AND t.tgqual IS NULL
    AND t.tgattr::text = '' AND t.tgtype IN (27, 34) AND md5(p.prosrc) = '{body}'
$$) WHERE result IS DISTINCT FROM '2'
