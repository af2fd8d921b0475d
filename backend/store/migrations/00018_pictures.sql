-- +goose Up

-- The https URL of a picture of what is sold; '' for none. Titles may be as long as the longest that shops use.
ALTER TABLE sales ADD COLUMN picture VARCHAR(500) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '';
ALTER TABLE sales MODIFY COLUMN title VARCHAR(500) NOT NULL;
ALTER TABLE skus MODIFY COLUMN title VARCHAR(500) NOT NULL;

-- +goose Down
UPDATE skus SET title = LEFT(title, 200);
UPDATE sales SET title = LEFT(title, 200);
ALTER TABLE skus MODIFY COLUMN title VARCHAR(200) NOT NULL;
ALTER TABLE sales MODIFY COLUMN title VARCHAR(200) NOT NULL;
ALTER TABLE sales DROP COLUMN picture;
