-- Written by `python -m tools.sqlite_tables`.

-- name: erased_sessions
CREATE TABLE erased_sessions (
	user_ref TEXT NOT NULL,
	session_ref TEXT NOT NULL,
	erased_at BIGINT NOT NULL,
	PRIMARY KEY (user_ref, session_ref)
)

-- name: held_keys
CREATE TABLE held_keys (
	user_ref TEXT NOT NULL,
	session_ref TEXT NOT NULL,
	version INTEGER NOT NULL,
	wrapped BLOB NOT NULL,
	created_at BIGINT NOT NULL,
	PRIMARY KEY (user_ref, session_ref, version)
)

-- name: rotated_session_keys
CREATE TABLE rotated_session_keys (
	user_ref TEXT NOT NULL,
	session_ref TEXT NOT NULL,
	version INTEGER NOT NULL,
	wrapped BLOB NOT NULL,
	created_at BIGINT NOT NULL,
	PRIMARY KEY (user_ref, session_ref, version)
)

-- name: session_keys
CREATE TABLE session_keys (
	user_ref TEXT NOT NULL,
	session_ref TEXT NOT NULL,
	wrapped BLOB NOT NULL,
	created_at BIGINT NOT NULL,
	PRIMARY KEY (user_ref, session_ref)
)

-- name: settings
CREATE TABLE settings (
	name TEXT NOT NULL,
	value BLOB NOT NULL,
	PRIMARY KEY (name)
)

-- name: user_keys
CREATE TABLE user_keys (
	user_ref TEXT NOT NULL,
	epoch INTEGER NOT NULL,
	wrapped BLOB,
	created_at BIGINT NOT NULL,
	PRIMARY KEY (user_ref)
)
