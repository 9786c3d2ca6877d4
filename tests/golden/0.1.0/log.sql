BEGIN TRANSACTION;
CREATE TABLE tpc_application (
	name TEXT NOT NULL, 
	"query" TEXT, 
	forgotten_through BIGINT, 
	durable_forgotten_through BIGINT, 
	lease_holder TEXT, 
	lease_until DOUBLE, 
	PRIMARY KEY (name), 
	UNIQUE ("query")
);
INSERT INTO "tpc_application" VALUES('orders',NULL,NULL,NULL,NULL,NULL);
CREATE TABLE tpc_audit (
	at DOUBLE NOT NULL, 
	who TEXT NOT NULL, 
	what TEXT NOT NULL, 
	why TEXT NOT NULL, 
	"before" TEXT, 
	"after" TEXT
);
CREATE TABLE tpc_delivery (
	transaction_id TEXT NOT NULL, 
	participant TEXT NOT NULL, 
	position INTEGER NOT NULL, 
	acknowledged DOUBLE, 
	retries BIGINT NOT NULL, 
	retry_at DOUBLE, 
	error TEXT, 
	own_sink BOOLEAN DEFAULT 0 NOT NULL, 
	untold TEXT, 
	given_up DOUBLE, 
	PRIMARY KEY (transaction_id, participant)
);
INSERT INTO "tpc_delivery" VALUES('orders.0.1','ledger',0,1.79574970195396971706e+09,0,NULL,NULL,0,NULL,NULL);
INSERT INTO "tpc_delivery" VALUES('orders.0.1','notifier',1,1.79574970195396971706e+09,0,NULL,NULL,0,NULL,NULL);
INSERT INTO "tpc_delivery" VALUES('orders.1.1','ledger',0,1.79574970217293214793e+09,0,NULL,NULL,0,NULL,NULL);
INSERT INTO "tpc_delivery" VALUES('orders.1.1','notifier',1,1.79574970217293214793e+09,0,NULL,NULL,0,NULL,NULL);
INSERT INTO "tpc_delivery" VALUES('orders.1.2','ledger',0,1.79574970244021797183e+09,0,NULL,NULL,0,NULL,NULL);
INSERT INTO "tpc_delivery" VALUES('orders.1.2','notifier',1,1.79574970244021797183e+09,0,NULL,NULL,0,NULL,NULL);
INSERT INTO "tpc_delivery" VALUES('orders.2.1','ledger',0,NULL,0,NULL,NULL,0,NULL,NULL);
INSERT INTO "tpc_delivery" VALUES('orders.2.1','notifier',1,NULL,0,NULL,NULL,0,NULL,NULL);
CREATE TABLE tpc_receipt (
	transaction_id TEXT NOT NULL, 
	participant TEXT NOT NULL, 
	branch TEXT NOT NULL, 
	position INTEGER NOT NULL, 
	vote TEXT NOT NULL, 
	rows BIGINT NOT NULL, 
	digest TEXT NOT NULL, 
	handle TEXT NOT NULL, 
	PRIMARY KEY (transaction_id, participant, branch)
);
INSERT INTO "tpc_receipt" VALUES('orders.1.2','ledger','0.0',0,'commit',1,'sha-256=:rFeJApQ9VxghNDceNmS3TJPR8is3ajSy0psZIpkIFBg=:','null');
INSERT INTO "tpc_receipt" VALUES('orders.1.2','notifier','0.0',1,'commit',1,'sha-256=:rFeJApQ9VxghNDceNmS3TJPR8is3ajSy0psZIpkIFBg=:','null');
INSERT INTO "tpc_receipt" VALUES('orders.2.1','ledger','0.0',0,'commit',1,'sha-256=:knPcw8XVFrWSNKZLR5iRrGZLZZ4Be44+t2X0ZYx4Dko=:','null');
INSERT INTO "tpc_receipt" VALUES('orders.2.1','notifier','0.0',1,'commit',1,'sha-256=:knPcw8XVFrWSNKZLR5iRrGZLZZ4Be44+t2X0ZYx4Dko=:','null');
CREATE TABLE tpc_run (
	application TEXT NOT NULL, 
	run TEXT NOT NULL, 
	sequence BIGINT NOT NULL, 
	registered DOUBLE NOT NULL, 
	batch BIGINT NOT NULL, 
	PRIMARY KEY (application, run), 
	UNIQUE (application, sequence)
);
INSERT INTO "tpc_run" VALUES('orders','a-run',1,1.79574969812954235081e+09,0);
CREATE TABLE tpc_transaction (
	id TEXT NOT NULL, 
	application TEXT NOT NULL, 
	batch BIGINT NOT NULL, 
	attempt BIGINT NOT NULL, 
	run TEXT NOT NULL, 
	state TEXT NOT NULL, 
	decision TEXT, 
	started DOUBLE NOT NULL, 
	decided DOUBLE, 
	finished DOUBLE, 
	timeout DOUBLE DEFAULT '0' NOT NULL, 
	deadline DOUBLE, 
	carrier TEXT NOT NULL, 
	rows BIGINT, 
	reason TEXT, 
	checksum TEXT NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (application, batch, attempt)
);
INSERT INTO "tpc_transaction" VALUES('orders.0.1','orders',0,1,'a-run','committed','commit',1.79574969812995338443e+09,1.79574970186434793471e+09,1.79574970195396971706e+09,900.0,1.79575059812948465342e+09,'{}',1,NULL,'8b93cfc33f5a0b948a2a2c4f5e7f136c362cc5ac489b052fa0ed1f204b89a8ec');
INSERT INTO "tpc_transaction" VALUES('orders.1.1','orders',1,1,'a-run','aborted','abort',1.79574970201210761065e+09,1.79574970207186770444e+09,1.79574970217293214793e+09,900.0,1.79575060201204323761e+09,'{"tpc-process":"{\"service.instance.id\": \"51893ef8-2c5f-4065-865c-f7dec0c32ca1\", \"host.name\": \"vm\", \"ip\": \"vm\", \"telemetry.sdk.language\": \"python\", \"telemetry.sdk.name\": \"opentelemetry\", \"telemetry.sdk.version\": \"1.45.1\", \"service.name\": \"ParticipantSink\"}","tpc-start":"1795749702010852963","traceparent":"00-005a7d342e3b3e4b4bde06ed2e01d41b-d4dfa0b8890af0c4-03"}',0,'aborted: error: while it was written: RuntimeError: a task failed','7fcc12665bddd1505c96d173af4461a2d16483c441c87d2b343f14e4a26c2e76');
INSERT INTO "tpc_transaction" VALUES('orders.1.2','orders',1,2,'a-run','committed','commit',1.79574970217799115184e+09,1.79574970234990549094e+09,1.79574970244021797183e+09,900.0,1.79575060217792034145e+09,'{"tpc-previous":"00-005a7d342e3b3e4b4bde06ed2e01d41b-d4dfa0b8890af0c4-03","tpc-process":"{\"service.instance.id\": \"51893ef8-2c5f-4065-865c-f7dec0c32ca1\", \"host.name\": \"vm\", \"ip\": \"vm\", \"telemetry.sdk.language\": \"python\", \"telemetry.sdk.name\": \"opentelemetry\", \"telemetry.sdk.version\": \"1.45.1\", \"service.name\": \"ParticipantSink\"}","tpc-start":"1795749702176623530","traceparent":"00-eaffbf55cd222eec176b375452804c1c-7a63c33e8c40241e-03"}',1,NULL,'dc919299abec8decc1768cc703786807cf9aaf08a1581229a5b4fecb48a0840d');
INSERT INTO "tpc_transaction" VALUES('orders.2.1','orders',2,1,'a-run','committing','commit',1.79574970245086622234e+09,1.79574970251565432547e+09,NULL,900.0,1.7957506024508016109e+09,'{"tpc-process":"{\"service.instance.id\": \"51893ef8-2c5f-4065-865c-f7dec0c32ca1\", \"host.name\": \"vm\", \"ip\": \"vm\", \"telemetry.sdk.language\": \"python\", \"telemetry.sdk.name\": \"opentelemetry\", \"telemetry.sdk.version\": \"1.45.1\", \"service.name\": \"ParticipantSink\"}","tpc-start":"1795749702449013723","traceparent":"00-322fec2b8f3f7b155ff06ad3be39fe45-3bd5abc70098453f-03"}',1,NULL,'6513ced1ba04551779fbb5ffd6c657891667565ffa4c761d76ab5cc41ca59204');
CREATE TABLE tpc_version (
	version INTEGER NOT NULL, 
	PRIMARY KEY (version)
);
INSERT INTO "tpc_version" VALUES(1);
CREATE INDEX tpc_unfinished ON tpc_transaction (application, batch, attempt) WHERE finished IS NULL;
CREATE UNIQUE INDEX tpc_one_commit ON tpc_transaction (application, batch) WHERE decision = 'commit';
CREATE INDEX tpc_not_committed ON tpc_transaction (application, batch, attempt) WHERE state IN ('aborted', 'concluded');
COMMIT;
