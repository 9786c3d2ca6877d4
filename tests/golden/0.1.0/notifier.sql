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
INSERT INTO "outbox_tpc_branch" VALUES(1,'orders',0,1,0,0,'committed',1,'sha-256=:G6bPl933MZKLLCVpHqiwuNB3by473Y4NMrVaQ2fV4Q4=:',3188355012,1.79574970176966476438e+09,1.79574970189964056013e+09);
INSERT INTO "outbox_tpc_branch" VALUES(2,'orders',1,1,0,0,'aborted',1,'sha-256=:rFeJApQ9VxghNDceNmS3TJPR8is3ajSy0psZIpkIFBg=:',768190865,1.79574970204918169976e+09,1.79574970213188409807e+09);
INSERT INTO "outbox_tpc_branch" VALUES(3,'orders',1,2,0,0,'committed',1,'sha-256=:rFeJApQ9VxghNDceNmS3TJPR8is3ajSy0psZIpkIFBg=:',283175417,1.7957497022300908566e+09,1.79574970237602591508e+09);
INSERT INTO "outbox_tpc_branch" VALUES(4,'orders',2,1,0,0,'prepared',1,'sha-256=:knPcw8XVFrWSNKZLR5iRrGZLZZ4Be44+t2X0ZYx4Dko=:',3233912392,1.79574970249582099909e+09,NULL);
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
INSERT INTO "outbox_tpc_quarantine" VALUES('orders.0.1.0.0.0','{"id": 0, "amount": 0.5}',422,1.7957497019967074394e+09,'no such card');
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
INSERT INTO "outbox_tpc_queue" VALUES('orders',1,0,0,2,3,'{"traceparent": "00-eaffbf55cd222eec176b375452804c1c-db551a972767fc89-03"}',1.79574970238365602499e+09);
CREATE TABLE outbox_tpc_refusals (
	application VARCHAR(40) NOT NULL, 
	in_a_row INTEGER NOT NULL, 
	PRIMARY KEY (application)
);
INSERT INTO "outbox_tpc_refusals" VALUES('orders',1);
CREATE TABLE outbox_tpc_schema (
	version INTEGER NOT NULL, 
	journal VARCHAR(32) NOT NULL, 
	kind VARCHAR(40) NOT NULL
);
INSERT INTO "outbox_tpc_schema" VALUES(1,'5c6d18a13e2745d59e4cf277ed5608dc','outbox');
CREATE TABLE outbox_tpc_sender (
	id INTEGER NOT NULL, 
	holder VARCHAR(40) NOT NULL, 
	until FLOAT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "outbox_tpc_sender" VALUES(1,'aa8fada6686cb24fa2905664a6333456',0.0);
CREATE TABLE outbox_tpc_transaction (
	application VARCHAR(40) NOT NULL, 
	batch BIGINT NOT NULL, 
	attempt INTEGER NOT NULL, 
	seal VARCHAR(9), 
	resolved_because TEXT, 
	carrier TEXT NOT NULL, 
	PRIMARY KEY (application, batch, attempt)
);
INSERT INTO "outbox_tpc_transaction" VALUES('orders',0,1,'committed',NULL,'{"traceparent": "00-c1f048f376a3df8041f40dbce091595a-2a0dbd634c0efe8b-03"}');
INSERT INTO "outbox_tpc_transaction" VALUES('orders',1,1,'aborted',NULL,'{"traceparent": "00-005a7d342e3b3e4b4bde06ed2e01d41b-d4d142fd61b5fc27-03"}');
INSERT INTO "outbox_tpc_transaction" VALUES('orders',1,2,'committed',NULL,'{"traceparent": "00-eaffbf55cd222eec176b375452804c1c-1ccd71876a1ddcdd-03"}');
INSERT INTO "outbox_tpc_transaction" VALUES('orders',2,1,NULL,NULL,'{"traceparent": "00-322fec2b8f3f7b155ff06ad3be39fe45-4b0da4cac38fdd4f-03"}');
CREATE INDEX outbox_tpc_open ON outbox_tpc_branch (tag) WHERE sealed IS NULL;
CREATE INDEX outbox_tpc_by_hand_key ON outbox_tpc_by_hand ("key");
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('outbox_tpc_branch',4);
COMMIT;
