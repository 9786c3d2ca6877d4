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
INSERT INTO "orders_tpc_branch" VALUES(1,'orders',0,1,0,0,'committed',1,'sha-256=:G6bPl933MZKLLCVpHqiwuNB3by473Y4NMrVaQ2fV4Q4=:',3188355012,1.79574744974012303353e+09,1.79574745030481934546e+09);
INSERT INTO "orders_tpc_branch" VALUES(2,'orders',1,1,0,0,'aborted',1,'sha-256=:rFeJApQ9VxghNDceNmS3TJPR8is3ajSy0psZIpkIFBg=:',768190865,1.79574745070883607864e+09,1.79574745091627573966e+09);
INSERT INTO "orders_tpc_branch" VALUES(3,'orders',1,2,0,0,'committed',1,'sha-256=:rFeJApQ9VxghNDceNmS3TJPR8is3ajSy0psZIpkIFBg=:',283175417,1.7957474513212952614e+09,1.79574745163556051259e+09);
INSERT INTO "orders_tpc_branch" VALUES(4,'orders',2,1,0,0,'prepared',1,'sha-256=:knPcw8XVFrWSNKZLR5iRrGZLZZ4Be44+t2X0ZYx4Dko=:',3233912392,1.79574745195611953736e+09,NULL);
CREATE TABLE orders_tpc_hidden (
	tag INTEGER NOT NULL, 
	doomed BIGINT, 
	PRIMARY KEY (tag)
);
INSERT INTO "orders_tpc_hidden" VALUES(4,NULL);
CREATE TABLE orders_tpc_schema (
	version INTEGER NOT NULL, 
	journal VARCHAR(32) NOT NULL, 
	kind VARCHAR(40) NOT NULL
);
INSERT INTO "orders_tpc_schema" VALUES(1,'2925ae87eb164f1eb2a93cb676ee34d7','tagged_rows');
CREATE TABLE orders_tpc_transaction (
	application VARCHAR(40) NOT NULL, 
	batch BIGINT NOT NULL, 
	attempt INTEGER NOT NULL, 
	seal VARCHAR(9), 
	resolved_because TEXT, 
	carrier TEXT NOT NULL, 
	PRIMARY KEY (application, batch, attempt)
);
INSERT INTO "orders_tpc_transaction" VALUES('orders',0,1,'committed',NULL,'{"traceparent": "00-e556b69c2a4ebfa8c3f6c1edbd1107a8-75e95a33524a8188-03"}');
INSERT INTO "orders_tpc_transaction" VALUES('orders',1,1,'aborted',NULL,'{"traceparent": "00-68e1b00ec4415cb169bfeb0e53e10feb-6b36cb89dcf75448-03"}');
INSERT INTO "orders_tpc_transaction" VALUES('orders',1,2,'committed',NULL,'{"traceparent": "00-1de39855091f513689484ea5461ba335-9bbb26fd0a91ac74-03"}');
INSERT INTO "orders_tpc_transaction" VALUES('orders',2,1,NULL,NULL,'{"traceparent": "00-4fb1ba50c27ec62aa48eb7aa0507bb46-f5ae3e2bd7cb6774-03"}');
CREATE INDEX orders_tpc_open ON orders_tpc_branch (tag) WHERE sealed IS NULL;
CREATE INDEX orders_tpc_tag ON orders_tpc (tpc_tag);
CREATE VIEW orders AS SELECT r.id, r.amount FROM (SELECT r.* FROM orders_tpc r WHERE NOT EXISTS (SELECT 1 FROM orders_tpc_hidden h WHERE h.tag = r.tpc_tag)) r;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('orders_tpc_branch',4);
COMMIT;
