-- Written by `python -m tools.sqlite_tables`.

-- name: accesses
CREATE TABLE accesses (
	user_id TEXT NOT NULL,
	session_id TEXT NOT NULL,
	reads BIGINT NOT NULL,
	last_at BIGINT NOT NULL,
	PRIMARY KEY (user_id, session_id)
)

-- name: audit
CREATE TABLE audit (
	record_id BLOB NOT NULL,
	ts BIGINT NOT NULL,
	event TEXT NOT NULL,
	user_hash TEXT,
	session_hash TEXT,
	request_hash TEXT,
	state_version BIGINT,
	event_type TEXT,
	duration_us BIGINT NOT NULL,
	status TEXT NOT NULL,
	error_code TEXT,
	meta TEXT NOT NULL,
	PRIMARY KEY (record_id)
)

-- name: audit.audit_user
CREATE INDEX audit_user ON audit (user_hash, record_id)

-- name: blobs
CREATE TABLE blobs (
	user_id TEXT NOT NULL,
	address BLOB NOT NULL,
	size BIGINT NOT NULL,
	created_at BIGINT NOT NULL,
	body BLOB NOT NULL,
	session_id TEXT,
	PRIMARY KEY (user_id, address)
)

-- name: certificates
CREATE TABLE certificates (
	certificate_id TEXT NOT NULL,
	user_ref TEXT NOT NULL,
	created_at BIGINT NOT NULL,
	body TEXT NOT NULL,
	PRIMARY KEY (certificate_id)
)

-- name: erasures
CREATE TABLE erasures (
	job_id TEXT NOT NULL,
	user_ref TEXT NOT NULL,
	stage TEXT NOT NULL,
	due_at BIGINT,
	body TEXT NOT NULL,
	PRIMARY KEY (job_id)
)

-- name: events
CREATE TABLE events (
	position INTEGER NOT NULL,
	user_id TEXT NOT NULL,
	session_id TEXT NOT NULL,
	stream TEXT NOT NULL,
	seq BIGINT NOT NULL,
	type TEXT NOT NULL,
	ts BIGINT NOT NULL,
	event_id BLOB NOT NULL,
	token_estimate INTEGER NOT NULL,
	schema_version SMALLINT NOT NULL,
	hash BLOB NOT NULL,
	body BLOB NOT NULL,
	first_digest BLOB,
	PRIMARY KEY (position),
	UNIQUE (user_id, session_id, stream, seq)
)

-- name: exports
CREATE TABLE exports (
	user_id TEXT NOT NULL,
	export_id TEXT NOT NULL,
	created_at BIGINT NOT NULL,
	body BLOB NOT NULL,
	PRIMARY KEY (user_id, export_id)
)

-- name: heads
CREATE TABLE heads (
	user_id TEXT NOT NULL,
	session_id TEXT NOT NULL,
	stream TEXT NOT NULL,
	seq BIGINT NOT NULL,
	hash BLOB NOT NULL,
	status TEXT NOT NULL,
	state BLOB NOT NULL,
	key_check BLOB NOT NULL,
	tokens BIGINT NOT NULL,
	created_at BIGINT NOT NULL,
	updated_at BIGINT NOT NULL,
	"before" TEXT,
	PRIMARY KEY (user_id, session_id, stream)
)

-- name: holds
CREATE TABLE holds (
	user_ref TEXT NOT NULL,
	name TEXT NOT NULL,
	reason TEXT NOT NULL,
	created_at BIGINT NOT NULL,
	PRIMARY KEY (user_ref, name)
)

-- name: labels
CREATE TABLE labels (
	user_id TEXT NOT NULL,
	session_id TEXT NOT NULL,
	name BLOB NOT NULL,
	address BLOB NOT NULL,
	PRIMARY KEY (user_id, session_id, name)
)

-- name: labels.labels_address
CREATE INDEX labels_address ON labels (user_id, address)

-- name: leases
CREATE TABLE leases (
	user_id TEXT NOT NULL,
	session_id TEXT NOT NULL,
	stream TEXT NOT NULL,
	owner TEXT NOT NULL,
	expires_at BIGINT NOT NULL,
	pending SMALLINT NOT NULL,
	period BIGINT DEFAULT '0' NOT NULL,
	PRIMARY KEY (user_id, session_id, stream)
)

-- name: leaves
CREATE TABLE leaves (
	leaf BIGINT NOT NULL,
	hash BLOB NOT NULL,
	erasure TEXT,
	PRIMARY KEY (leaf)
)

-- name: leaves.leaves_erasure
CREATE INDEX leaves_erasure ON leaves (erasure)

-- name: receipts
CREATE TABLE receipts (
	user_id TEXT NOT NULL,
	session_id TEXT NOT NULL,
	stream TEXT NOT NULL,
	address BLOB NOT NULL,
	first_seq BIGINT NOT NULL,
	last_seq BIGINT NOT NULL,
	PRIMARY KEY (user_id, session_id, stream, address)
)

-- name: seals
CREATE TABLE seals (
	user_id TEXT NOT NULL,
	session_id TEXT NOT NULL,
	stream TEXT NOT NULL,
	seq BIGINT NOT NULL,
	leaf BIGINT NOT NULL,
	positions BLOB NOT NULL,
	receipts BLOB NOT NULL,
	PRIMARY KEY (user_id, session_id, stream, seq)
)

-- name: settings
CREATE TABLE settings (
	name TEXT NOT NULL,
	value TEXT NOT NULL,
	PRIMARY KEY (name)
)

-- name: subjects
CREATE TABLE subjects (
	ref TEXT NOT NULL,
	user_ref TEXT NOT NULL,
	status TEXT NOT NULL,
	epoch INTEGER NOT NULL,
	PRIMARY KEY (ref)
)

-- name: tree_heads
CREATE TABLE tree_heads (
	size BIGINT NOT NULL,
	root BLOB NOT NULL,
	sealed_at BIGINT NOT NULL,
	key_id TEXT NOT NULL,
	signature BLOB NOT NULL,
	peaks BLOB NOT NULL,
	position BIGINT NOT NULL,
	PRIMARY KEY (size)
)

-- name: views
CREATE TABLE views (
	user_id TEXT NOT NULL,
	session_id TEXT NOT NULL,
	name TEXT NOT NULL,
	through_seq BIGINT NOT NULL,
	derived_seq BIGINT NOT NULL,
	body BLOB NOT NULL,
	main_spans TEXT DEFAULT '[]' NOT NULL,
	derived_spans TEXT DEFAULT '[]' NOT NULL,
	PRIMARY KEY (user_id, session_id, name)
)
