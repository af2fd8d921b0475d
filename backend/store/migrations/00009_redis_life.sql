-- +goose Up

-- The life of Redis that was reconciled last: sale_reserve.lua is loaded into every node under its name, and called by it. So a node
-- that was not there, because it was restarted, or left behind by a failover, does not know the script, whatever it knew before.
CREATE TABLE redis_life (
  only_row TINYINT     NOT NULL PRIMARY KEY,
  name     VARCHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL
);

-- +goose Down
DROP TABLE redis_life;
