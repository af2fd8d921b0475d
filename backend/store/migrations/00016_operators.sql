-- +goose Up

-- The role that an operator had at a change; '' for the timer, and for changes from before there were roles.
ALTER TABLE audit_log ADD COLUMN role VARCHAR(16) NOT NULL DEFAULT '';

-- An Idempotency-Key is its operator's. A backend from before this knows one operator, admin.
ALTER TABLE admin_requests ADD COLUMN who VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT 'admin';
ALTER TABLE admin_requests DROP PRIMARY KEY, ADD PRIMARY KEY (idem_key, who);

-- +goose Down
DELETE FROM admin_requests WHERE who <> 'admin';
ALTER TABLE admin_requests DROP PRIMARY KEY, ADD PRIMARY KEY (idem_key);
ALTER TABLE admin_requests DROP COLUMN who;
ALTER TABLE audit_log DROP COLUMN role;
