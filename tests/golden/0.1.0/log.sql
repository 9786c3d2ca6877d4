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
INSERT INTO "tpc_delivery" VALUES('orders.0.1','ledger',0,1.79573576667062926289e+09,0,NULL,NULL,0,NULL,NULL);
INSERT INTO "tpc_delivery" VALUES('orders.1.1','ledger',0,1.7957357667487208843e+09,0,NULL,NULL,0,NULL,NULL);
INSERT INTO "tpc_delivery" VALUES('orders.1.2','ledger',0,1.79573576682218956942e+09,0,NULL,NULL,0,NULL,NULL);
INSERT INTO "tpc_delivery" VALUES('orders.2.1','ledger',0,NULL,0,NULL,NULL,0,NULL,NULL);
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
INSERT INTO "tpc_receipt" VALUES('orders.2.1','ledger','0.0',0,'commit',1,'sha-256=:knPcw8XVFrWSNKZLR5iRrGZLZZ4Be44+t2X0ZYx4Dko=:','null');
CREATE TABLE tpc_run (
	application TEXT NOT NULL, 
	run TEXT NOT NULL, 
	sequence BIGINT NOT NULL, 
	registered DOUBLE NOT NULL, 
	batch BIGINT NOT NULL, 
	PRIMARY KEY (application, run), 
	UNIQUE (application, sequence)
);
INSERT INTO "tpc_run" VALUES('orders','a-run',1,1.79573576585583233834e+09,0);
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
INSERT INTO "tpc_transaction" VALUES('orders.0.1','orders',0,1,'a-run','committed','commit',1.79573576585611104959e+09,1.79573576662383723257e+09,1.79573576667062926289e+09,900.0,1.79573666585579633713e+09,'{}',1,NULL,'0086886169764731a6f3a30166e038198ed1226c189fd19806c270951d9defa2');
INSERT INTO "tpc_transaction" VALUES('orders.1.1','orders',1,1,'a-run','aborted','abort',1.79573576667799448963e+09,1.7957357667292349339e+09,1.7957357667487208843e+09,900.0,1.79573666667795610427e+09,'{"tpc-process":"{\"service.instance.id\": \"9fda15e8-5a94-47b0-b96c-3c3b6ed37664\", \"host.name\": \"vm\", \"ip\": \"vm\", \"telemetry.sdk.language\": \"python\", \"telemetry.sdk.name\": \"opentelemetry\", \"telemetry.sdk.version\": \"1.45.1\", \"service.name\": \"ParticipantSink\"}","tpc-start":"1795735766677601463","traceparent":"00-b8c59c866c6f0adc9405801b2b50af2f-83e185a64d3b29ec-03"}',0,'aborted: error: while it was written: RuntimeError: a task failed','26ca875ee7f6299420f3063e00d199e87672563e019e829d175998e53e085c63');
INSERT INTO "tpc_transaction" VALUES('orders.1.2','orders',1,2,'a-run','committed','commit',1.7957357667524178028e+09,1.79573576678934192655e+09,1.79573576682218956942e+09,900.0,1.7957366667523794174e+09,'{"tpc-previous":"00-b8c59c866c6f0adc9405801b2b50af2f-83e185a64d3b29ec-03","tpc-process":"{\"service.instance.id\": \"9fda15e8-5a94-47b0-b96c-3c3b6ed37664\", \"host.name\": \"vm\", \"ip\": \"vm\", \"telemetry.sdk.language\": \"python\", \"telemetry.sdk.name\": \"opentelemetry\", \"telemetry.sdk.version\": \"1.45.1\", \"service.name\": \"ParticipantSink\"}","tpc-start":"1795735766751942619","traceparent":"00-f56d6b52cb003d15765c9562d10ec4bb-4d52094c5034440c-03"}',1,NULL,'25fec8f7e19a67bb27bc7210889094c2bfa5cbb973a4d5a4b6f7d167220d432b');
INSERT INTO "tpc_transaction" VALUES('orders.2.1','orders',2,1,'a-run','committing','commit',1.79573576682483267781e+09,1.79573576688116502762e+09,NULL,900.0,1.79573666682479357722e+09,'{"tpc-process":"{\"service.instance.id\": \"9fda15e8-5a94-47b0-b96c-3c3b6ed37664\", \"host.name\": \"vm\", \"ip\": \"vm\", \"telemetry.sdk.language\": \"python\", \"telemetry.sdk.name\": \"opentelemetry\", \"telemetry.sdk.version\": \"1.45.1\", \"service.name\": \"ParticipantSink\"}","tpc-start":"1795735766824412104","traceparent":"00-4e7ceb81346d608c7dd7e3a102f940df-7ce4064e4aa1453a-03"}',1,NULL,'5d56bf00ecf0276146e5df05769955b754d1036b7b25760ec9db776bf1c4a7e7');
CREATE TABLE tpc_version (
	version INTEGER NOT NULL, 
	PRIMARY KEY (version)
);
INSERT INTO "tpc_version" VALUES(1);
CREATE UNIQUE INDEX tpc_one_commit ON tpc_transaction (application, batch) WHERE decision = 'commit';
CREATE INDEX tpc_not_committed ON tpc_transaction (application, batch, attempt) WHERE state IN ('aborted', 'concluded');
CREATE INDEX tpc_unfinished ON tpc_transaction (application, batch, attempt) WHERE finished IS NULL;
COMMIT;
