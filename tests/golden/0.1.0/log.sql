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
	verb TEXT NOT NULL, 
	about TEXT NOT NULL, 
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
INSERT INTO "tpc_delivery" VALUES('orders.0.1','ledger',0,1.79581581587404131889e+09,0,NULL,NULL,0,NULL,NULL);
INSERT INTO "tpc_delivery" VALUES('orders.0.1','notifier',1,1.79581581587404131889e+09,0,NULL,NULL,0,NULL,NULL);
INSERT INTO "tpc_delivery" VALUES('orders.1.1','ledger',0,1.79581581592267346385e+09,0,NULL,NULL,0,NULL,NULL);
INSERT INTO "tpc_delivery" VALUES('orders.1.1','notifier',1,1.79581581592267346385e+09,0,NULL,NULL,0,NULL,NULL);
INSERT INTO "tpc_delivery" VALUES('orders.1.2','ledger',0,1.79581581602286243434e+09,0,NULL,NULL,0,NULL,NULL);
INSERT INTO "tpc_delivery" VALUES('orders.1.2','notifier',1,1.79581581602286243434e+09,0,NULL,NULL,0,NULL,NULL);
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
INSERT INTO "tpc_run" VALUES('orders','a-run',1,1.79581581412592387195e+09,0);
CREATE TABLE tpc_schema (
	version INTEGER NOT NULL, 
	id VARCHAR(32) NOT NULL, 
	kind VARCHAR(40) NOT NULL
);
INSERT INTO "tpc_schema" VALUES(1,'396754a7d5b541f6b256781b61d98cd5','log');
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
	previous TEXT, 
	links TEXT, 
	rows BIGINT, 
	cause TEXT, 
	detail TEXT, 
	reason TEXT, 
	passed_by BIGINT, 
	journals TEXT, 
	checksum TEXT NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (application, batch, attempt)
);
INSERT INTO "tpc_transaction" VALUES('orders.0.1','orders',0,1,'a-run','committed','commit',1795815814.12648,1.7958158157929356098e+09,1.79581581587404131889e+09,900.0,1.79581671412584185595e+09,'{}',NULL,NULL,1,NULL,NULL,NULL,NULL,NULL,'5ac1a8c250bc6077b4366c632a059834c5c24ec5eeeb5b7246ee505d8189392a');
INSERT INTO "tpc_transaction" VALUES('orders.1.1','orders',1,1,'a-run','aborted','abort',1.79581581588451337809e+09,1.79581581590774655345e+09,1.79581581592267346385e+09,900.0,1795816715.88446,'{"tpc-process":"{\"service.instance.id\": \"a998c61f-60aa-44ad-95f5-ceb600028ad2\", \"host.name\": \"vm\", \"ip\": \"vm\", \"telemetry.sdk.language\": \"python\", \"telemetry.sdk.name\": \"opentelemetry\", \"telemetry.sdk.version\": \"1.45.1\", \"service.name\": \"ParticipantSink\"}","tpc-start":"1795815815883941160","traceparent":"00-72b2963208bd16a0f3b9ff85b2dd3114-2e994612c173f3f3-03"}',NULL,NULL,0,'error','while it was written: RuntimeError: a task failed',NULL,NULL,NULL,'f75aac0976d06bcd5b02ff57cb8aabea53aee421dc28e687c09b3d9303fb26de');
INSERT INTO "tpc_transaction" VALUES('orders.1.2','orders',1,2,'a-run','committed','commit',1.79581581592460179331e+09,1.79581581598191308973e+09,1.79581581602286243434e+09,900.0,1.79581671592455387109e+09,'{"tpc-process":"{\"service.instance.id\": \"a998c61f-60aa-44ad-95f5-ceb600028ad2\", \"host.name\": \"vm\", \"ip\": \"vm\", \"telemetry.sdk.language\": \"python\", \"telemetry.sdk.name\": \"opentelemetry\", \"telemetry.sdk.version\": \"1.45.1\", \"service.name\": \"ParticipantSink\"}","tpc-start":"1795815815924070065","traceparent":"00-fd920d53f436e05eccef21ccb9b55d52-f4b07fff216957e0-03"}','00-72b2963208bd16a0f3b9ff85b2dd3114-2e994612c173f3f3-03',NULL,1,NULL,NULL,NULL,NULL,NULL,'e53bc965c6a56af70f81b9e4ac2e54b9ffe6f5ed57eb9e9d15acf65269cf63d7');
INSERT INTO "tpc_transaction" VALUES('orders.2.1','orders',2,1,'a-run','committing','commit',1.79581581602521538738e+09,1.79581581604939246178e+09,NULL,900.0,1.7958167160251634121e+09,'{"tpc-process":"{\"service.instance.id\": \"a998c61f-60aa-44ad-95f5-ceb600028ad2\", \"host.name\": \"vm\", \"ip\": \"vm\", \"telemetry.sdk.language\": \"python\", \"telemetry.sdk.name\": \"opentelemetry\", \"telemetry.sdk.version\": \"1.45.1\", \"service.name\": \"ParticipantSink\"}","tpc-start":"1795815816024631618","traceparent":"00-22ade6903c483bdb31e2c5da4f43b203-fb7d0f2a8f004467-03"}',NULL,NULL,1,NULL,NULL,NULL,NULL,NULL,'6bbbc3aec81649052ffa8cabaebc6f48a63bb426e0adf0d523aa5f7e89870f0a');
CREATE INDEX tpc_unfinished ON tpc_transaction (application, batch, attempt) WHERE finished IS NULL;
CREATE INDEX tpc_not_committed ON tpc_transaction (application, batch, attempt) WHERE state IN ('aborted', 'concluded');
CREATE UNIQUE INDEX tpc_one_commit ON tpc_transaction (application, batch) WHERE decision = 'commit';
COMMIT;
