-- The statements of keystore.py.  `{shared}` and `{locked}` keep a row as it is until the
-- transaction ends, where that has to be said.

-- name: pepper
SELECT value FROM {settings} WHERE name='pepper' {shared}

-- name: wrapped
SELECT wrapped FROM {user_keys} WHERE user_ref=:user_ref {shared}

-- name: locked_key
SELECT wrapped FROM {user_keys} WHERE user_ref=:user_ref {locked}

-- name: locked_generation
SELECT value FROM {settings} WHERE name='generation' {locked}

-- A version, an epoch and a wrapped key for all that is known of a session: -1 is the
-- user, 0 says that it was erased.
-- name: user_and_session_keys
SELECT -1, epoch, wrapped FROM {user_keys} WHERE user_ref=:user
UNION ALL
SELECT 1, 1, wrapped FROM {session_keys}
WHERE user_ref=:user AND session_ref=:session
UNION ALL
SELECT version, 1, wrapped FROM {rotated_session_keys}
WHERE user_ref=:user AND session_ref=:session
UNION ALL
SELECT 0, 1, NULL FROM {erased_sessions} WHERE user_ref=:user AND session_ref=:session

-- name: setting
SELECT value FROM {settings} WHERE name=:name

-- Users, also those who have no key any more.
-- name: users
SELECT user_ref, epoch, wrapped FROM {user_keys} WHERE user_ref>:after
ORDER BY user_ref LIMIT :limit

-- name: held_users
SELECT u.user_ref, u.epoch, h.wrapped FROM {user_keys} u
JOIN {held_keys} h ON h.user_ref=u.user_ref AND h.session_ref=''

-- Keys of sessions; the first of each is of version 1.
-- name: keys_of
SELECT session_ref, 1, wrapped FROM {session_keys} WHERE {of_user}
UNION ALL
SELECT session_ref, version, wrapped FROM {rotated_session_keys} WHERE user_ref=:user

-- name: surplus
SELECT coalesce(sum(many - 1), 0) FROM (SELECT count(*) AS many FROM (
    SELECT user_ref, session_ref FROM {session_keys} WHERE {of}
    UNION ALL SELECT user_ref, session_ref FROM {rotated_session_keys} WHERE {of}) k
  GROUP BY user_ref, session_ref) k

-- name: counts
SELECT (SELECT count(*) FROM {user_keys} WHERE wrapped IS NOT NULL) AS users,
  (SELECT count(*) FROM {user_keys} WHERE wrapped IS NULL) AS erased_users,
  (SELECT count(*) FROM {session_keys}) AS sessions,
  (SELECT count(*) FROM {rotated_session_keys}) AS rotated,
  (SELECT count(*) FROM {erased_sessions}) AS erased_sessions,
  (SELECT count(*) FROM {held_keys}) AS held

-- name: put_setting
INSERT INTO {settings} (name, value) VALUES (:name, :value)
ON CONFLICT (name) DO UPDATE SET value=excluded.value

-- name: drop_first
DELETE FROM {session_keys}
WHERE user_ref=:user AND session_ref=:session AND :before>1

-- name: drop_rotated
DELETE FROM {rotated_session_keys}
WHERE user_ref=:user AND session_ref=:session AND version<:before

-- name: erase_session
INSERT INTO {erased_sessions} (user_ref, session_ref, erased_at)
VALUES (:user, :session, :at) ON CONFLICT DO NOTHING

-- name: readmit
UPDATE {user_keys} SET wrapped=:wrapped, epoch=:epoch, created_at=:now
WHERE user_ref=:user AND epoch=:before AND wrapped IS NULL

-- name: wrap_first
UPDATE {session_keys} SET wrapped=:wrapped
WHERE user_ref=:user AND session_ref=:session_ref

-- name: wrap_rotated
UPDATE {rotated_session_keys} SET wrapped=:wrapped
WHERE user_ref=:user AND session_ref=:session_ref AND version=:version

-- name: add_setting
INSERT INTO {settings} (name, value) VALUES (:name, :value)

-- name: add_user
INSERT INTO {user_keys} (user_ref, epoch, wrapped, created_at)
VALUES (:user_ref, :epoch, :wrapped, :created_at)

-- name: add_session
INSERT INTO {session_keys} (user_ref, session_ref, wrapped, created_at)
VALUES (:user_ref, :session_ref, :wrapped, :created_at)

-- name: add_rotated
INSERT INTO {rotated_session_keys} (user_ref, session_ref, version, wrapped, created_at)
VALUES (:user_ref, :session_ref, :version, :wrapped, :created_at)

-- name: restore_user
UPDATE {user_keys} SET wrapped=:wrapped WHERE user_ref=:user_ref

-- A user who has no key yet is known as erased too.
-- name: erase_user
INSERT INTO {user_keys} (user_ref, epoch, created_at) VALUES (:user, 1, :at)
ON CONFLICT (user_ref) DO UPDATE SET wrapped=NULL
