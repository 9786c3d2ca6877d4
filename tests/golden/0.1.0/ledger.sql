BEGIN TRANSACTION;
CREATE TABLE orders_tpc (
	id BIGINT, 
	amount DOUBLE, 
	tpc_tag INTEGER NOT NULL
);
INSERT INTO "orders_tpc" VALUES(0,0.5,1);
INSERT INTO "orders_tpc" VALUES(1,1.5,3);
INSERT INTO "orders_tpc" VALUES(2,2.5,4);
CREATE TABLE orders_tpc_application (
	application VARCHAR(40) NOT NULL, 
	forgotten_through BIGINT, 
	participant VARCHAR(40) NOT NULL, 
	PRIMARY KEY (application)
);
INSERT INTO "orders_tpc_application" VALUES('orders',NULL,'ledger');
CREATE TABLE orders_tpc_branch (
	tag INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	application VARCHAR(40) NOT NULL, 
	batch BIGINT NOT NULL, 
	attempt INTEGER NOT NULL, 
	partition BIGINT NOT NULL, 
	task_attempt BIGINT NOT NULL, 
	state VARCHAR(9) NOT NULL, 
	rows BIGINT NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	checksum BIGINT NOT NULL, 
	since FLOAT NOT NULL, 
	sealed FLOAT, 
	UNIQUE (application, batch, attempt, partition, task_attempt)
);
INSERT INTO "orders_tpc_branch" VALUES(1,'orders',0,1,0,0,'committed',1,'sha-256=:G6bPl933MZKLLCVpHqiwuNB3by473Y4NMrVaQ2fV4Q4=:',3188355012,1.79590465066906666757e+09,1.79590465071820497514e+09);
INSERT INTO "orders_tpc_branch" VALUES(2,'orders',1,1,0,0,'aborted',1,'sha-256=:rFeJApQ9VxghNDceNmS3TJPR8is3ajSy0psZIpkIFBg=:',768190865,1.79590465100808286671e+09,1.79590465109356737139e+09);
INSERT INTO "orders_tpc_branch" VALUES(3,'orders',1,2,0,0,'committed',1,'sha-256=:rFeJApQ9VxghNDceNmS3TJPR8is3ajSy0psZIpkIFBg=:',283175417,1.79590465113104224203e+09,1.79590465127928829193e+09);
INSERT INTO "orders_tpc_branch" VALUES(4,'orders',2,1,0,0,'prepared',1,'sha-256=:knPcw8XVFrWSNKZLR5iRrGZLZZ4Be44+t2X0ZYx4Dko=:',3233912392,1.79590465137306046486e+09,NULL);
CREATE TABLE orders_tpc_hidden (
	tag INTEGER NOT NULL, 
	doomed BIGINT, 
	PRIMARY KEY (tag)
);
INSERT INTO "orders_tpc_hidden" VALUES(4,NULL);
CREATE TABLE orders_tpc_schema (
	version INTEGER NOT NULL, 
	id VARCHAR(32) NOT NULL, 
	kind VARCHAR(40) NOT NULL
);
INSERT INTO "orders_tpc_schema" VALUES(1,'e23dd9cd0a8744b7a0fe2931ba89587f','tagged_rows');
CREATE TABLE orders_tpc_transaction (
	application VARCHAR(40) NOT NULL, 
	batch BIGINT NOT NULL, 
	attempt INTEGER NOT NULL, 
	seal VARCHAR(9), 
	resolved_because TEXT, 
	carrier TEXT NOT NULL, 
	PRIMARY KEY (application, batch, attempt)
);
INSERT INTO "orders_tpc_transaction" VALUES('orders',0,1,'committed',NULL,'{"traceparent": "00-13183e7c5d571b9ddcdf1d0f605ae62d-cf5fb626107453fe-03"}');
INSERT INTO "orders_tpc_transaction" VALUES('orders',1,1,'aborted',NULL,'{"traceparent": "00-5be04414eb7f6ed4abf8b820a8adeaba-63bdee9aec5f2032-03"}');
INSERT INTO "orders_tpc_transaction" VALUES('orders',1,2,'committed',NULL,'{"traceparent": "00-ae3b85ea2e139a9f6723e2c9e7e2c9bf-e7adddb2a8739ebf-03"}');
INSERT INTO "orders_tpc_transaction" VALUES('orders',2,1,NULL,NULL,'{"traceparent": "00-b2ed66d740e118ed3d24bf2898d52b41-04bfbf798a6dba82-03"}');
CREATE INDEX orders_tpc_open ON orders_tpc_branch (tag) WHERE sealed IS NULL;
CREATE INDEX orders_tpc_tag ON orders_tpc (tpc_tag);
CREATE VIEW orders AS SELECT r.id, r.amount FROM (SELECT r.* FROM orders_tpc r WHERE NOT EXISTS (SELECT 1 FROM orders_tpc_hidden h WHERE h.tag = r.tpc_tag)) r;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('orders_tpc_branch',4);
COMMIT;
