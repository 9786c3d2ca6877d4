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
INSERT INTO "outbox_tpc_branch" VALUES(1,'orders',0,1,0,0,'committed',1,'sha-256=:G6bPl933MZKLLCVpHqiwuNB3by473Y4NMrVaQ2fV4Q4=:',3188355012,1.79590465062907147404e+09,1.79590465071624827385e+09);
INSERT INTO "outbox_tpc_branch" VALUES(2,'orders',1,1,0,0,'aborted',1,'sha-256=:rFeJApQ9VxghNDceNmS3TJPR8is3ajSy0psZIpkIFBg=:',768190865,1.79590465102305960653e+09,1.79590465109565019605e+09);
INSERT INTO "outbox_tpc_branch" VALUES(3,'orders',1,2,0,0,'committed',1,'sha-256=:rFeJApQ9VxghNDceNmS3TJPR8is3ajSy0psZIpkIFBg=:',283175417,1.79590465112903809553e+09,1.79590465129425621033e+09);
INSERT INTO "outbox_tpc_branch" VALUES(4,'orders',2,1,0,0,'prepared',1,'sha-256=:knPcw8XVFrWSNKZLR5iRrGZLZZ4Be44+t2X0ZYx4Dko=:',3233912392,1.79590465143803524965e+09,NULL);
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
	trouble VARCHAR(12) NOT NULL, 
	status INTEGER NOT NULL, 
	since FLOAT NOT NULL, 
	answer TEXT, 
	body TEXT, 
	PRIMARY KEY ("key", trouble)
);
INSERT INTO "outbox_tpc_quarantine" VALUES('orders.0.1.0.0.0','refused',422,1.79590465099257397653e+09,'no such card','{"id": 0, "amount": 0.5}');
CREATE TABLE outbox_tpc_queue (
	application VARCHAR(40) NOT NULL, 
	batch BIGINT NOT NULL, 
	partition BIGINT NOT NULL, 
	task_attempt BIGINT NOT NULL, 
	tag INTEGER NOT NULL, 
	attempt INTEGER NOT NULL, 
	carrier TEXT NOT NULL, 
	committed FLOAT NOT NULL, 
	rows BIGINT NOT NULL, 
	next_row BIGINT NOT NULL, 
	PRIMARY KEY (application, batch, partition, task_attempt, tag)
);
INSERT INTO "outbox_tpc_queue" VALUES('orders',1,0,0,3,2,'{"traceparent": "00-ae3b85ea2e139a9f6723e2c9e7e2c9bf-eb595a5a173c64b8-03"}',1.79590465129500198365e+09,1,0);
CREATE TABLE outbox_tpc_refusals (
	application VARCHAR(40) NOT NULL, 
	in_a_row INTEGER NOT NULL, 
	answer TEXT, 
	PRIMARY KEY (application)
);
INSERT INTO "outbox_tpc_refusals" VALUES('orders',1,'the partner answered 503');
CREATE TABLE outbox_tpc_schema (
	version INTEGER NOT NULL, 
	id VARCHAR(32) NOT NULL, 
	kind VARCHAR(40) NOT NULL
);
INSERT INTO "outbox_tpc_schema" VALUES(1,'5667b3324b7f4544a9e4f0b413056bad','outbox');
CREATE TABLE outbox_tpc_sender (
	id INTEGER NOT NULL, 
	holder VARCHAR(40) NOT NULL, 
	until FLOAT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "outbox_tpc_sender" VALUES(1,'0265f846d502b3ed5a267e538aaea7b6',0.0);
CREATE TABLE outbox_tpc_transaction (
	application VARCHAR(40) NOT NULL, 
	batch BIGINT NOT NULL, 
	attempt INTEGER NOT NULL, 
	seal VARCHAR(9), 
	resolved_because TEXT, 
	carrier TEXT NOT NULL, 
	PRIMARY KEY (application, batch, attempt)
);
INSERT INTO "outbox_tpc_transaction" VALUES('orders',0,1,'committed',NULL,'{"traceparent": "00-13183e7c5d571b9ddcdf1d0f605ae62d-821be3e3c240ca8b-03"}');
INSERT INTO "outbox_tpc_transaction" VALUES('orders',1,1,'aborted',NULL,'{"traceparent": "00-5be04414eb7f6ed4abf8b820a8adeaba-2fa1229fc16557ef-03"}');
INSERT INTO "outbox_tpc_transaction" VALUES('orders',1,2,'committed',NULL,'{"traceparent": "00-ae3b85ea2e139a9f6723e2c9e7e2c9bf-84a267bb5a9d1ad6-03"}');
INSERT INTO "outbox_tpc_transaction" VALUES('orders',2,1,NULL,NULL,'{"traceparent": "00-b2ed66d740e118ed3d24bf2898d52b41-6fd9fb21928ef5a9-03"}');
CREATE INDEX outbox_tpc_open ON outbox_tpc_branch (tag) WHERE sealed IS NULL;
CREATE INDEX outbox_tpc_by_hand_key ON outbox_tpc_by_hand ("key");
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('outbox_tpc_branch',4);
COMMIT;
