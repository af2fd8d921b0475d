-- +goose Up

-- For support's search of a sale, and its export, which go by order id.
ALTER TABLE orders ADD KEY orders_sale (sale_id, id);

ALTER TABLE audit_log ADD KEY audit_log_target (target, id);

-- Lists of uids: list 0 are the banned ones, list N, while it is active, the only ones that may buy in sale N. Its row is
-- locked by whoever changes a list.
CREATE TABLE uid_lists (
  list_id    BIGINT      NOT NULL PRIMARY KEY,
  generation BIGINT      NOT NULL, -- counts replacements: only members of the present one count
  version    BIGINT      NOT NULL, -- counts changes
  size       BIGINT      NOT NULL, -- members that are listed
  active     BOOLEAN     NOT NULL, -- it counts; not of an archived sale
  changed_at DATETIME(3) NOT NULL,
  KEY uid_lists_active (active),
  CONSTRAINT uid_lists_size CHECK (size >= 0)
);

-- One that was taken off stays, not listed: so that a process which knows an older version learns of it.
CREATE TABLE uid_list_members (
  list_id    BIGINT      NOT NULL,
  generation BIGINT      NOT NULL,
  uid        VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  listed     BOOLEAN     NOT NULL,
  version    BIGINT      NOT NULL, -- of the list when it last changed
  PRIMARY KEY (list_id, generation, uid),
  KEY uid_list_changes (list_id, generation, version, uid)
);

-- +goose Down
DROP TABLE uid_list_members, uid_lists;
ALTER TABLE audit_log DROP KEY audit_log_target;
ALTER TABLE orders DROP KEY orders_sale;
