-- The statements of roles.py; `{role}` is the name of a role.

-- Whether there is any session: what opens a store must know, whoever it sees.
-- name: has_sessions
CREATE OR REPLACE FUNCTION refold.has_sessions() RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ SELECT EXISTS (SELECT 1 FROM refold.heads) $$

-- Groups are written for several users in one commit, as another role: whoever has to
-- read becomes it to write, and inherits none of its rights meanwhile.
-- name: become
DO $$ BEGIN
  IF NOT pg_has_role('{role}', 'refold_writer', 'MEMBER') THEN
    GRANT refold_writer TO {role};
  END IF;
END $$

-- name: create
DO $$ BEGIN
  IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{role}') THEN
    CREATE ROLE {role} NOLOGIN NOINHERIT;
  END IF;
END $$

-- name: forget
DO $$ DECLARE old record; BEGIN
  FOR old IN SELECT policyname, tablename FROM pg_policies
    WHERE schemaname = 'refold' AND policyname LIKE 'refold\_%'
  LOOP
    EXECUTE format('DROP POLICY %I ON refold.%I', old.policyname, old.tablename);
  END LOOP;
END $$

-- name: sight
SELECT row_security_active('refold.heads'), EXISTS (
  SELECT FROM pg_policy p, unnest(p.polroles) r
  WHERE p.polrelid = 'refold.heads'::regclass AND p.polcmd IN ('r', '*')
    AND pg_get_expr(p.polqual, p.polrelid) = 'true' AND pg_has_role(r, 'USAGE'))
