-- +goose Up

-- A row that is there to be changed: the commit of a change syncs all that was committed before (store.Durable).
CREATE TABLE durable (
  only_row TINYINT NOT NULL PRIMARY KEY,
  n        BIGINT  NOT NULL
);
INSERT INTO durable (only_row, n) SELECT 1, 0 FROM (SELECT COUNT(*) AS there FROM durable) d WHERE d.there = 0;

-- +goose Down
DROP TABLE durable;
