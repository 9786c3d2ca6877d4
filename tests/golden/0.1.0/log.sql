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
INSERT INTO "tpc_delivery" VALUES('orders.0.1','ledger',0,1.79574745039505219456e+09,0,NULL,NULL,0,NULL,NULL);
INSERT INTO "tpc_delivery" VALUES('orders.1.1','ledger',0,1.79574745099197649956e+09,0,NULL,NULL,0,NULL,NULL);
INSERT INTO "tpc_delivery" VALUES('orders.1.2','ledger',0,1.79574745172248411177e+09,0,NULL,NULL,0,NULL,NULL);
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
INSERT INTO "tpc_run" VALUES('orders','a-run',1,1.79574744183708214766e+09,0);
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
INSERT INTO "tpc_transaction" VALUES('orders.0.1','orders',0,1,'a-run','committed','commit',1.79574744183745098119e+09,1.79574745007329869268e+09,1.79574745039505219456e+09,900.0,1.79574834183704853062e+09,'{}',1,NULL,'aec62fac329be3c183826c5a5bcf03f507e62e72f6fc4f17e29d8cd809186981');
INSERT INTO "tpc_transaction" VALUES('orders.1.1','orders',1,1,'a-run','aborted','abort',1.79574745050420022012e+09,1.7957474507795460224e+09,1.79574745099197649956e+09,900.0,1.7957483505041418075e+09,'{"tpc-process":"{\"service.instance.id\": \"211b5fda-235a-423b-9124-8e4d3a332436\", \"host.name\": \"vm\", \"ip\": \"vm\", \"telemetry.sdk.language\": \"python\", \"telemetry.sdk.name\": \"opentelemetry\", \"telemetry.sdk.version\": \"1.45.1\", \"service.name\": \"ParticipantSink\"}","tpc-start":"1795747450503231348","traceparent":"00-68e1b00ec4415cb169bfeb0e53e10feb-ab1b6b2d6baaa67e-03"}',0,'aborted: error: while it was written: RuntimeError: a task failed','4fe4d77844c8a04c6b7ec2ca13057ba5e0f794a799c9556657f29b03f958507f');
INSERT INTO "tpc_transaction" VALUES('orders.1.2','orders',1,2,'a-run','committed','commit',1.79574745099427509308e+09,1.79574745140717267986e+09,1.79574745172248411177e+09,900.0,1795748350.99421,'{"tpc-previous":"00-68e1b00ec4415cb169bfeb0e53e10feb-ab1b6b2d6baaa67e-03","tpc-process":"{\"service.instance.id\": \"211b5fda-235a-423b-9124-8e4d3a332436\", \"host.name\": \"vm\", \"ip\": \"vm\", \"telemetry.sdk.language\": \"python\", \"telemetry.sdk.name\": \"opentelemetry\", \"telemetry.sdk.version\": \"1.45.1\", \"service.name\": \"ParticipantSink\"}","tpc-start":"1795747450993685886","traceparent":"00-1de39855091f513689484ea5461ba335-a155c6a2d654486a-03"}',1,NULL,'3a2772a8fd937e1a5634763dabbfa66a8b6b0991a19924fcf0aa1140f3425160');
INSERT INTO "tpc_transaction" VALUES('orders.2.1','orders',2,1,'a-run','committing','commit',1.79574745172595357902e+09,1.79574745201552367205e+09,NULL,900.0,1.79574835172589898106e+09,'{"tpc-process":"{\"service.instance.id\": \"211b5fda-235a-423b-9124-8e4d3a332436\", \"host.name\": \"vm\", \"ip\": \"vm\", \"telemetry.sdk.language\": \"python\", \"telemetry.sdk.name\": \"opentelemetry\", \"telemetry.sdk.version\": \"1.45.1\", \"service.name\": \"ParticipantSink\"}","tpc-start":"1795747451725317005","traceparent":"00-4fb1ba50c27ec62aa48eb7aa0507bb46-bffc12a4a26522de-03"}',1,NULL,'f3ab6d43dc9ae25f724b0f3b85838eb6c0e2a320db1848ec89ce4840affb1ffc');
CREATE TABLE tpc_version (
	version INTEGER NOT NULL, 
	PRIMARY KEY (version)
);
INSERT INTO "tpc_version" VALUES(1);
CREATE INDEX tpc_unfinished ON tpc_transaction (application, batch, attempt) WHERE finished IS NULL;
CREATE UNIQUE INDEX tpc_one_commit ON tpc_transaction (application, batch) WHERE decision = 'commit';
CREATE INDEX tpc_not_committed ON tpc_transaction (application, batch, attempt) WHERE state IN ('aborted', 'concluded');
COMMIT;
