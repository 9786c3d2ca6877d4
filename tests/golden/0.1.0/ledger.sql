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
	since FLOAT NOT NULL, 
	sealed FLOAT, 
	UNIQUE (application, batch, attempt, partition, task_attempt)
);
INSERT INTO "orders_tpc_branch" VALUES(1,'orders',0,1,0,0,'committed',1,'sha-256=:G6bPl933MZKLLCVpHqiwuNB3by473Y4NMrVaQ2fV4Q4=:',1.79573576657161760325e+09,1.7957357666460607052e+09);
INSERT INTO "orders_tpc_branch" VALUES(2,'orders',1,1,0,0,'aborted',1,'sha-256=:rFeJApQ9VxghNDceNmS3TJPR8is3ajSy0psZIpkIFBg=:',1.79573576671826744084e+09,1.7957357667429711818e+09);
INSERT INTO "orders_tpc_branch" VALUES(3,'orders',1,2,0,0,'committed',1,'sha-256=:rFeJApQ9VxghNDceNmS3TJPR8is3ajSy0psZIpkIFBg=:',1.79573576677989315986e+09,1.79573576681285500527e+09);
INSERT INTO "orders_tpc_branch" VALUES(4,'orders',2,1,0,0,'prepared',1,'sha-256=:knPcw8XVFrWSNKZLR5iRrGZLZZ4Be44+t2X0ZYx4Dko=:',1.7957357668449623585e+09,NULL);
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
INSERT INTO "orders_tpc_schema" VALUES(1,'a967a3f9ee8d43e3a3b69bbd255019a6','tagged_rows');
CREATE TABLE orders_tpc_transaction (
	application VARCHAR(40) NOT NULL, 
	batch BIGINT NOT NULL, 
	attempt INTEGER NOT NULL, 
	seal VARCHAR(9), 
	resolved_because TEXT, 
	carrier TEXT NOT NULL, 
	PRIMARY KEY (application, batch, attempt)
);
INSERT INTO "orders_tpc_transaction" VALUES('orders',0,1,'committed',NULL,'{"traceparent": "00-b675c20ed15793b03e20d5565e85c3a2-fd203deec1797472-03"}');
INSERT INTO "orders_tpc_transaction" VALUES('orders',1,1,'aborted',NULL,'{"traceparent": "00-b8c59c866c6f0adc9405801b2b50af2f-2cd5072d0a2375ae-03"}');
INSERT INTO "orders_tpc_transaction" VALUES('orders',1,2,'committed',NULL,'{"traceparent": "00-f56d6b52cb003d15765c9562d10ec4bb-789a3f4510078f63-03"}');
INSERT INTO "orders_tpc_transaction" VALUES('orders',2,1,NULL,NULL,'{"traceparent": "00-4e7ceb81346d608c7dd7e3a102f940df-9f721b42627f0954-03"}');
CREATE INDEX orders_tpc_open ON orders_tpc_branch (tag) WHERE sealed IS NULL;
CREATE INDEX orders_tpc_tag ON orders_tpc (tpc_tag);
CREATE VIEW orders AS SELECT r.id, r.amount FROM (SELECT r.* FROM orders_tpc r WHERE NOT EXISTS (SELECT 1 FROM orders_tpc_hidden h WHERE h.tag = r.tpc_tag)) r;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('orders_tpc_branch',4);
COMMIT;
