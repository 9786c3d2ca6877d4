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
INSERT INTO "tpc_delivery" VALUES('orders.0.1','ledger',0,1.79582966346777915958e+09,0,NULL,NULL,0,NULL,NULL);
INSERT INTO "tpc_delivery" VALUES('orders.0.1','notifier',1,1.79582966346777915958e+09,0,NULL,NULL,0,NULL,NULL);
INSERT INTO "tpc_delivery" VALUES('orders.1.1','ledger',0,1.79582966355540561676e+09,0,NULL,NULL,0,NULL,NULL);
INSERT INTO "tpc_delivery" VALUES('orders.1.1','notifier',1,1.79582966355540561676e+09,0,NULL,NULL,0,NULL,NULL);
INSERT INTO "tpc_delivery" VALUES('orders.1.2','ledger',0,1.79582966359050154683e+09,0,NULL,NULL,0,NULL,NULL);
INSERT INTO "tpc_delivery" VALUES('orders.1.2','notifier',1,1.79582966359050154683e+09,0,NULL,NULL,0,NULL,NULL);
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
INSERT INTO "tpc_run" VALUES('orders','a-run',1,1.79582966117293047901e+09,0);
CREATE TABLE tpc_schema (
	version INTEGER NOT NULL, 
	id VARCHAR(32) NOT NULL, 
	kind VARCHAR(40) NOT NULL
);
INSERT INTO "tpc_schema" VALUES(1,'0eee93e349da44fc9974984fba9c7b34','log');
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
	root_link TEXT, 
	root_start BIGINT, 
	root_resource TEXT, 
	launch_digest TEXT, 
	launch_namespace TEXT, 
	launch_repository TEXT, 
	launch_builder TEXT, 
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
INSERT INTO "tpc_transaction" VALUES('orders.0.1','orders',0,1,'a-run','committed','commit',1.79582966118410229682e+09,1.79582966337807202342e+09,1.79582966346777915958e+09,900.0,1.79583056117287969593e+09,'{}',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1,NULL,NULL,NULL,NULL,NULL,'734057c70097d1cd08c0d67ea6c53d4b772157135d7f9a9ce58c0f80b374a592');
INSERT INTO "tpc_transaction" VALUES('orders.1.1','orders',1,1,'a-run','aborted','abort',1.79582966348252391812e+09,1.79582966352068662636e+09,1.79582966355540561676e+09,900.0,1.79583056348247456553e+09,'{"traceparent":"00-29ceab55fa526c37a732b168a0754370-8f7487eb8c5211af-03"}',NULL,NULL,1795829663477013432,'{"service.instance.id": "024ab16d-5258-4c6b-b7cc-cc7d926a1e2f", "host.name": "vm", "ip": "vm", "telemetry.sdk.language": "python", "telemetry.sdk.name": "opentelemetry", "telemetry.sdk.version": "1.45.1", "service.name": "ParticipantSink"}',NULL,NULL,NULL,NULL,NULL,0,'error','while it was written: RuntimeError: a task failed',NULL,NULL,NULL,'0192e507925a90e9389d58d9d1bf21febed6f9ab907fbc033bd0281190cd61ab');
INSERT INTO "tpc_transaction" VALUES('orders.1.2','orders',1,2,'a-run','committed','commit',1.7958296635572309494e+09,1.79582966357946372036e+09,1.79582966359050154683e+09,900.0,1.79583056355718779562e+09,'{"traceparent":"00-10ccf9a170a7613a1e164936d335f646-b415294280e3124e-03"}','00-29ceab55fa526c37a732b168a0754370-8f7487eb8c5211af-03',NULL,1795829663556692289,'{"service.instance.id": "024ab16d-5258-4c6b-b7cc-cc7d926a1e2f", "host.name": "vm", "ip": "vm", "telemetry.sdk.language": "python", "telemetry.sdk.name": "opentelemetry", "telemetry.sdk.version": "1.45.1", "service.name": "ParticipantSink"}',NULL,NULL,NULL,NULL,NULL,1,NULL,NULL,NULL,NULL,NULL,'918e944969eb139c885c2b40964dd27d27a047342ca0a67cfe4cc7af6285a69b');
INSERT INTO "tpc_transaction" VALUES('orders.2.1','orders',2,1,'a-run','committing','commit',1.7958296635924036503e+09,1.79582966361897683146e+09,NULL,900.0,1.79583056359235906603e+09,'{"traceparent":"00-ab951d879656a031c003aa27a4eea885-dc797c3fdad22d71-03"}',NULL,NULL,1795829663591852066,'{"service.instance.id": "024ab16d-5258-4c6b-b7cc-cc7d926a1e2f", "host.name": "vm", "ip": "vm", "telemetry.sdk.language": "python", "telemetry.sdk.name": "opentelemetry", "telemetry.sdk.version": "1.45.1", "service.name": "ParticipantSink"}',NULL,NULL,NULL,NULL,NULL,1,NULL,NULL,NULL,NULL,NULL,'f5108888137872b7ef4b12b4180b4c5a21f81baae2db65de4dc4d476623ac1fa');
CREATE UNIQUE INDEX tpc_one_commit ON tpc_transaction (application, batch) WHERE decision = 'commit';
CREATE INDEX tpc_unfinished ON tpc_transaction (application, batch, attempt) WHERE finished IS NULL;
CREATE INDEX tpc_not_committed ON tpc_transaction (application, batch, attempt) WHERE state IN ('aborted', 'concluded');
COMMIT;
