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
INSERT INTO "orders_tpc_branch" VALUES(1,'orders',0,1,0,0,'committed',1,'sha-256=:G6bPl933MZKLLCVpHqiwuNB3by473Y4NMrVaQ2fV4Q4=:',3188355012,1.79582966334691071508e+09,1.79582966340829300877e+09);
INSERT INTO "orders_tpc_branch" VALUES(2,'orders',1,1,0,0,'aborted',1,'sha-256=:rFeJApQ9VxghNDceNmS3TJPR8is3ajSy0psZIpkIFBg=:',768190865,1.79582966350379109377e+09,1.79582966355045485495e+09);
INSERT INTO "orders_tpc_branch" VALUES(3,'orders',1,2,0,0,'committed',1,'sha-256=:rFeJApQ9VxghNDceNmS3TJPR8is3ajSy0psZIpkIFBg=:',283175417,1.79582966357211542131e+09,1.79582966358310675619e+09);
INSERT INTO "orders_tpc_branch" VALUES(4,'orders',2,1,0,0,'prepared',1,'sha-256=:knPcw8XVFrWSNKZLR5iRrGZLZZ4Be44+t2X0ZYx4Dko=:',3233912392,1.79582966360711312296e+09,NULL);
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
INSERT INTO "orders_tpc_schema" VALUES(1,'918a6fc1c0a94d3d94871a14d6304734','tagged_rows');
CREATE TABLE orders_tpc_transaction (
	application VARCHAR(40) NOT NULL, 
	batch BIGINT NOT NULL, 
	attempt INTEGER NOT NULL, 
	seal VARCHAR(9), 
	resolved_because TEXT, 
	carrier TEXT NOT NULL, 
	PRIMARY KEY (application, batch, attempt)
);
INSERT INTO "orders_tpc_transaction" VALUES('orders',0,1,'committed',NULL,'{"traceparent": "00-289f2f599200089376ed40b75377b0fe-13c9c660e6acc249-03"}');
INSERT INTO "orders_tpc_transaction" VALUES('orders',1,1,'aborted',NULL,'{"traceparent": "00-29ceab55fa526c37a732b168a0754370-c1a972c469777b1f-03"}');
INSERT INTO "orders_tpc_transaction" VALUES('orders',1,2,'committed',NULL,'{"traceparent": "00-10ccf9a170a7613a1e164936d335f646-c5e3cb7efd34caac-03"}');
INSERT INTO "orders_tpc_transaction" VALUES('orders',2,1,NULL,NULL,'{"traceparent": "00-ab951d879656a031c003aa27a4eea885-851d7c841acf058e-03"}');
CREATE INDEX orders_tpc_open ON orders_tpc_branch (tag) WHERE sealed IS NULL;
CREATE INDEX orders_tpc_tag ON orders_tpc (tpc_tag);
CREATE VIEW orders AS SELECT r.id, r.amount FROM (SELECT r.* FROM orders_tpc r WHERE NOT EXISTS (SELECT 1 FROM orders_tpc_hidden h WHERE h.tag = r.tpc_tag)) r;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('orders_tpc_branch',4);
COMMIT;
