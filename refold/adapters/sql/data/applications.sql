-- The statement of applications of the eventsourcing library.  `{table}` is filled in
-- where it is used.

-- name: track
INSERT INTO {table} (application_name, notification_id) VALUES (:name, :id)
ON CONFLICT (application_name) DO UPDATE SET notification_id = excluded.notification_id
WHERE {table}.notification_id < excluded.notification_id
RETURNING notification_id
