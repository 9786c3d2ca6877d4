BEGIN TRANSACTION;
CREATE TABLE outbox_tpc (
	tpc_tag INTEGER NOT NULL, 
	tpc_row BIGINT NOT NULL, 
	body TEXT NOT NULL, 
	PRIMARY KEY (tpc_tag, tpc_row)
);
INSERT INTO "outbox_tpc" VALUES(3,0,'{"id": 1, "amount": 1.5}');
INSERT INTO "outbox_tpc" VALUES(4,0,'{"id": 2, "amount": 2.5}');
CREATE TABLE outbox_tpc_application (
	application VARCHAR(40) NOT NULL, 
	forgotten_through BIGINT, 
	participant VARCHAR(40) NOT NULL, 
	PRIMARY KEY (application)
);
INSERT INTO "outbox_tpc_application" VALUES('orders',NULL,'notifier');
CREATE TABLE outbox_tpc_branch (
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
INSERT INTO "outbox_tpc_branch" VALUES(1,'orders',0,1,0,0,'committed',1,'sha-256=:G6bPl933MZKLLCVpHqiwuNB3by473Y4NMrVaQ2fV4Q4=:',3188355012,1.79582916811968874935e+09,1.79582916824085426325e+09);
INSERT INTO "outbox_tpc_branch" VALUES(2,'orders',1,1,0,0,'aborted',1,'sha-256=:rFeJApQ9VxghNDceNmS3TJPR8is3ajSy0psZIpkIFBg=:',768190865,1.7958291683981878758e+09,1.79582916843843293187e+09);
INSERT INTO "outbox_tpc_branch" VALUES(3,'orders',1,2,0,0,'committed',1,'sha-256=:rFeJApQ9VxghNDceNmS3TJPR8is3ajSy0psZIpkIFBg=:',283175417,1.79582916884174847603e+09,1.7958291688593828678e+09);
INSERT INTO "outbox_tpc_branch" VALUES(4,'orders',2,1,0,0,'prepared',1,'sha-256=:knPcw8XVFrWSNKZLR5iRrGZLZZ4Be44+t2X0ZYx4Dko=:',3233912392,1.79582916888784527775e+09,NULL);
CREATE TABLE outbox_tpc_by_hand (
	number INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	"key" VARCHAR(160) NOT NULL, 
	action VARCHAR(5) NOT NULL, 
	who TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	at FLOAT NOT NULL, 
	status INTEGER NOT NULL, 
	since FLOAT NOT NULL, 
	body TEXT, 
	not_taken BOOLEAN NOT NULL, 
	answer TEXT
);
CREATE TABLE outbox_tpc_hidden (
	tag INTEGER NOT NULL, 
	doomed BIGINT, 
	PRIMARY KEY (tag)
);
INSERT INTO "outbox_tpc_hidden" VALUES(4,NULL);
CREATE TABLE outbox_tpc_quarantine (
	"key" VARCHAR(160) NOT NULL, 
	body TEXT NOT NULL, 
	status INTEGER NOT NULL, 
	since FLOAT NOT NULL, 
	answer TEXT, 
	PRIMARY KEY ("key")
);
INSERT INTO "outbox_tpc_quarantine" VALUES('orders.0.1.0.0.0','{"id": 0, "amount": 0.5}',422,1.79582916834225487711e+09,'no such card');
CREATE TABLE outbox_tpc_queue (
	application VARCHAR(40) NOT NULL, 
	batch BIGINT NOT NULL, 
	partition BIGINT NOT NULL, 
	task_attempt BIGINT NOT NULL, 
	attempt INTEGER NOT NULL, 
	tag INTEGER NOT NULL, 
	carrier TEXT NOT NULL, 
	committed FLOAT NOT NULL, 
	PRIMARY KEY (application, batch, partition, task_attempt)
);
INSERT INTO "outbox_tpc_queue" VALUES('orders',1,0,0,2,3,'{"traceparent": "00-f964a15880e8d8b67f6684a7f017cb87-8b450819eac661fb-03"}',1.79582916885979819304e+09);
CREATE TABLE outbox_tpc_refusals (
	application VARCHAR(40) NOT NULL, 
	in_a_row INTEGER NOT NULL, 
	PRIMARY KEY (application)
);
INSERT INTO "outbox_tpc_refusals" VALUES('orders',1);
CREATE TABLE outbox_tpc_schema (
	version INTEGER NOT NULL, 
	id VARCHAR(32) NOT NULL, 
	kind VARCHAR(40) NOT NULL
);
INSERT INTO "outbox_tpc_schema" VALUES(1,'48503f084fbf4aa08485712d9233a949','outbox');
CREATE TABLE outbox_tpc_sender (
	id INTEGER NOT NULL, 
	holder VARCHAR(40) NOT NULL, 
	until FLOAT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "outbox_tpc_sender" VALUES(1,'8aa1a3cee5acb22735a4e6a60134892e',0.0);
CREATE TABLE outbox_tpc_transaction (
	application VARCHAR(40) NOT NULL, 
	batch BIGINT NOT NULL, 
	attempt INTEGER NOT NULL, 
	seal VARCHAR(9), 
	resolved_because TEXT, 
	carrier TEXT NOT NULL, 
	PRIMARY KEY (application, batch, attempt)
);
INSERT INTO "outbox_tpc_transaction" VALUES('orders',0,1,'committed',NULL,'{"traceparent": "00-d06035e8bea96524e0c2b409c133956e-4e136bc6a3bc8c64-03"}');
INSERT INTO "outbox_tpc_transaction" VALUES('orders',1,1,'aborted',NULL,'{"traceparent": "00-79d0c25eebe037baaefeac5359a78584-d31ead15f86b00d8-03"}');
INSERT INTO "outbox_tpc_transaction" VALUES('orders',1,2,'committed',NULL,'{"traceparent": "00-f964a15880e8d8b67f6684a7f017cb87-78dd1d6ff8bd5533-03"}');
INSERT INTO "outbox_tpc_transaction" VALUES('orders',2,1,NULL,NULL,'{"traceparent": "00-64628c434dc39f2a01d9bbbeea6c0d9c-d22b90c928cca758-03"}');
CREATE INDEX outbox_tpc_open ON outbox_tpc_branch (tag) WHERE sealed IS NULL;
CREATE INDEX outbox_tpc_by_hand_key ON outbox_tpc_by_hand ("key");
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('outbox_tpc_branch',4);
COMMIT;
