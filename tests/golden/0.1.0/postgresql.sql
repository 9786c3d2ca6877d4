SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET transaction_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
SET default_tablespace = '';
SET default_table_access_method = heap;
CREATE TABLE public.events_tpc_event (
    "position" bigint NOT NULL,
    producer character varying(40) NOT NULL,
    id character varying(200) NOT NULL,
    body text NOT NULL,
    at double precision NOT NULL,
    carrier text NOT NULL
);
CREATE TABLE public.events_tpc_head (
    version integer NOT NULL,
    inbox character varying(32) NOT NULL,
    "position" bigint NOT NULL,
    trimmed bigint NOT NULL,
    keep double precision NOT NULL,
    ids double precision NOT NULL
);
CREATE TABLE public.events_tpc_key (
    producer character varying(40) NOT NULL,
    id character varying(200) NOT NULL,
    digest character varying(64) NOT NULL,
    "position" bigint NOT NULL,
    at double precision NOT NULL
);
CREATE TABLE public.events_tpc_passed (
    at double precision NOT NULL,
    "position" bigint NOT NULL
);
CREATE TABLE public.events_tpc_reader (
    reader character varying(40) NOT NULL,
    "position" bigint NOT NULL,
    id character varying(200) NOT NULL,
    at double precision NOT NULL
);
CREATE TABLE public.orders_tpc (
    id bigint,
    amount double precision,
    tpc_tag bigint NOT NULL
);
ALTER TABLE ONLY public.orders_tpc REPLICA IDENTITY FULL;
CREATE TABLE public.orders_tpc_hidden (
    tag bigint NOT NULL,
    doomed bigint
);
CREATE VIEW public.orders AS
 SELECT id,
    amount
   FROM ( SELECT r_1.id,
            r_1.amount,
            r_1.tpc_tag
           FROM public.orders_tpc r_1
          WHERE (NOT (EXISTS ( SELECT 1
                   FROM public.orders_tpc_hidden h
                  WHERE (h.tag = r_1.tpc_tag))))) r;
CREATE TABLE public.orders_tpc_application (
    application character varying(40) NOT NULL,
    forgotten_through bigint,
    participant character varying(40) NOT NULL
);
CREATE TABLE public.orders_tpc_branch (
    tag bigint NOT NULL,
    application character varying(40) NOT NULL,
    batch bigint NOT NULL,
    attempt integer NOT NULL,
    partition bigint NOT NULL,
    task_attempt bigint NOT NULL,
    state character varying(9) NOT NULL,
    rows bigint NOT NULL,
    digest character varying(64) NOT NULL,
    checksum bigint NOT NULL,
    since double precision NOT NULL,
    sealed double precision
);
CREATE SEQUENCE public.orders_tpc_branch_tag_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.orders_tpc_branch_tag_seq OWNED BY public.orders_tpc_branch.tag;
CREATE TABLE public.orders_tpc_schema (
    version integer NOT NULL,
    id character varying(32) NOT NULL,
    kind character varying(40) NOT NULL
);
CREATE TABLE public.orders_tpc_transaction (
    application character varying(40) NOT NULL,
    batch bigint NOT NULL,
    attempt integer NOT NULL,
    seal character varying(9),
    resolved_because text,
    carrier text NOT NULL
);
CREATE TABLE public.outbox_tpc (
    tpc_tag bigint NOT NULL,
    tpc_row bigint NOT NULL,
    body text NOT NULL
);
CREATE TABLE public.outbox_tpc_application (
    application character varying(40) NOT NULL,
    forgotten_through bigint,
    participant character varying(40) NOT NULL
);
CREATE TABLE public.outbox_tpc_branch (
    tag bigint NOT NULL,
    application character varying(40) NOT NULL,
    batch bigint NOT NULL,
    attempt integer NOT NULL,
    partition bigint NOT NULL,
    task_attempt bigint NOT NULL,
    state character varying(9) NOT NULL,
    rows bigint NOT NULL,
    digest character varying(64) NOT NULL,
    checksum bigint NOT NULL,
    since double precision NOT NULL,
    sealed double precision
);
CREATE SEQUENCE public.outbox_tpc_branch_tag_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.outbox_tpc_branch_tag_seq OWNED BY public.outbox_tpc_branch.tag;
CREATE TABLE public.outbox_tpc_by_hand (
    number bigint NOT NULL,
    key character varying(160) NOT NULL,
    action character varying(5) NOT NULL,
    who text NOT NULL,
    reason text NOT NULL,
    at double precision NOT NULL,
    status integer NOT NULL,
    since double precision NOT NULL,
    body text,
    not_taken boolean NOT NULL,
    answer text
);
CREATE SEQUENCE public.outbox_tpc_by_hand_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.outbox_tpc_by_hand_number_seq OWNED BY public.outbox_tpc_by_hand.number;
CREATE TABLE public.outbox_tpc_hidden (
    tag bigint NOT NULL,
    doomed bigint
);
CREATE TABLE public.outbox_tpc_quarantine (
    key character varying(160) NOT NULL,
    body text NOT NULL,
    status integer NOT NULL,
    since double precision NOT NULL,
    answer text
);
CREATE TABLE public.outbox_tpc_queue (
    application character varying(40) NOT NULL,
    batch bigint NOT NULL,
    partition bigint NOT NULL,
    task_attempt bigint NOT NULL,
    attempt integer NOT NULL,
    tag bigint NOT NULL,
    carrier text NOT NULL,
    committed double precision NOT NULL
);
CREATE TABLE public.outbox_tpc_refusals (
    application character varying(40) NOT NULL,
    in_a_row integer NOT NULL
);
CREATE TABLE public.outbox_tpc_schema (
    version integer NOT NULL,
    id character varying(32) NOT NULL,
    kind character varying(40) NOT NULL
);
CREATE TABLE public.outbox_tpc_sender (
    id integer NOT NULL,
    holder character varying(40) NOT NULL,
    until double precision NOT NULL
);
CREATE TABLE public.outbox_tpc_transaction (
    application character varying(40) NOT NULL,
    batch bigint NOT NULL,
    attempt integer NOT NULL,
    seal character varying(9),
    resolved_because text,
    carrier text NOT NULL
);
CREATE TABLE public.tpc_application (
    name text NOT NULL,
    query text,
    forgotten_through bigint,
    durable_forgotten_through bigint,
    lease_holder text,
    lease_until double precision
);
CREATE TABLE public.tpc_audit (
    at double precision NOT NULL,
    who text NOT NULL,
    verb text NOT NULL,
    about text NOT NULL,
    why text NOT NULL,
    before text,
    after text
);
CREATE TABLE public.tpc_delivery (
    transaction_id text NOT NULL,
    participant text NOT NULL,
    "position" integer NOT NULL,
    acknowledged double precision,
    retries bigint NOT NULL,
    retry_at double precision,
    error text,
    own_sink boolean DEFAULT false NOT NULL,
    untold text,
    given_up double precision
);
CREATE TABLE public.tpc_receipt (
    transaction_id text NOT NULL,
    participant text NOT NULL,
    branch text NOT NULL,
    "position" integer NOT NULL,
    vote text NOT NULL,
    rows bigint NOT NULL,
    digest text NOT NULL,
    handle text NOT NULL
);
CREATE TABLE public.tpc_run (
    application text NOT NULL,
    run text NOT NULL,
    sequence bigint NOT NULL,
    registered double precision NOT NULL,
    batch bigint NOT NULL
);
CREATE TABLE public.tpc_schema (
    version integer NOT NULL,
    id character varying(32) NOT NULL,
    kind character varying(40) NOT NULL
);
CREATE TABLE public.tpc_transaction (
    id text NOT NULL,
    application text NOT NULL,
    batch bigint NOT NULL,
    attempt bigint NOT NULL,
    run text NOT NULL,
    state text NOT NULL,
    decision text,
    started double precision NOT NULL,
    decided double precision,
    finished double precision,
    timeout double precision DEFAULT '0'::double precision NOT NULL,
    deadline double precision,
    carrier text NOT NULL,
    previous text,
    root_link text,
    root_start bigint,
    root_resource text,
    launch_digest text,
    launch_namespace text,
    launch_repository text,
    launch_builder text,
    links text,
    rows bigint,
    cause text,
    detail text,
    reason text,
    passed_by bigint,
    journals text,
    checksum text NOT NULL
);
ALTER TABLE ONLY public.orders_tpc_branch ALTER COLUMN tag SET DEFAULT nextval('public.orders_tpc_branch_tag_seq'::regclass);
ALTER TABLE ONLY public.outbox_tpc_branch ALTER COLUMN tag SET DEFAULT nextval('public.outbox_tpc_branch_tag_seq'::regclass);
ALTER TABLE ONLY public.outbox_tpc_by_hand ALTER COLUMN number SET DEFAULT nextval('public.outbox_tpc_by_hand_number_seq'::regclass);
INSERT INTO public.events_tpc_event VALUES (1, 'shop', 'e1', '{"id": 1}', 1795829668.40222, '{}');
INSERT INTO public.events_tpc_event VALUES (2, 'shop', 'e2', '{"id": 2}', 1795829668.40222, '{}');
INSERT INTO public.events_tpc_head VALUES (1, '8f5c89491afc4cfea30a344f96ad2dfa', 2, 0, 604800, 7776000);
INSERT INTO public.events_tpc_key VALUES ('shop', 'e1', '037c9214eef74cc3887f3a4f085b4e17d76280dafd273b0ee160c09c4ba1cfd4', 1, 1795829668.40222);
INSERT INTO public.events_tpc_key VALUES ('shop', 'e2', '9e7e65453739bbc64ba155eed18a37bd5fb1196c7f29ded1da660b94414d7ad8', 2, 1795829668.40222);
INSERT INTO public.events_tpc_passed VALUES (1795829668.473691, 1);
INSERT INTO public.events_tpc_reader VALUES ('orders', 1, 'e1', 1795829668.473691);
INSERT INTO public.orders_tpc VALUES (0, 0.5, 1);
INSERT INTO public.orders_tpc VALUES (1, 1.5, 3);
INSERT INTO public.orders_tpc VALUES (2, 2.5, 4);
INSERT INTO public.orders_tpc_application VALUES ('orders', NULL, 'ledger');
INSERT INTO public.orders_tpc_branch VALUES (1, 'orders', 0, 1, 0, 0, 'committed', 1, 'sha-256=:G6bPl933MZKLLCVpHqiwuNB3by473Y4NMrVaQ2fV4Q4=:', 3188355012, 1795829666.8537385, 1795829666.9995866);
INSERT INTO public.orders_tpc_branch VALUES (2, 'orders', 1, 1, 0, 0, 'aborted', 1, 'sha-256=:rFeJApQ9VxghNDceNmS3TJPR8is3ajSy0psZIpkIFBg=:', 768190865, 1795829667.257894, 1795829667.433139);
INSERT INTO public.orders_tpc_branch VALUES (3, 'orders', 1, 2, 0, 0, 'committed', 1, 'sha-256=:rFeJApQ9VxghNDceNmS3TJPR8is3ajSy0psZIpkIFBg=:', 283175417, 1795829667.728347, 1795829667.8018854);
INSERT INTO public.orders_tpc_branch VALUES (4, 'orders', 2, 1, 0, 0, 'prepared', 1, 'sha-256=:knPcw8XVFrWSNKZLR5iRrGZLZZ4Be44+t2X0ZYx4Dko=:', 3233912392, 1795829667.9770157, NULL);
INSERT INTO public.orders_tpc_hidden VALUES (4, NULL);
INSERT INTO public.orders_tpc_schema VALUES (1, '409875c1770d4669927efe3e855f78e2', 'tagged_rows');
INSERT INTO public.orders_tpc_transaction VALUES ('orders', 0, 1, 'committed', NULL, '{"traceparent": "00-49d0614caad8cd416ab8337dd89f0a5d-60b733866e5f6edd-03"}');
INSERT INTO public.orders_tpc_transaction VALUES ('orders', 1, 1, 'aborted', NULL, '{"traceparent": "00-895a242c29a1c2592aff5eedbbcfda7e-3c6739d80fd37bcb-03"}');
INSERT INTO public.orders_tpc_transaction VALUES ('orders', 1, 2, 'committed', NULL, '{"traceparent": "00-5b1e1e8e8244ec876c2a57a5d5f0f3e1-a1f4074d39834ad9-03"}');
INSERT INTO public.orders_tpc_transaction VALUES ('orders', 2, 1, NULL, NULL, '{"traceparent": "00-a6fac6f1e253591cb09e160d5090e2db-e36f364a8ee3750d-03"}');
INSERT INTO public.outbox_tpc VALUES (3, 0, '{"id": 1, "amount": 1.5}');
INSERT INTO public.outbox_tpc VALUES (4, 0, '{"id": 2, "amount": 2.5}');
INSERT INTO public.outbox_tpc_application VALUES ('orders', NULL, 'notifier');
INSERT INTO public.outbox_tpc_branch VALUES (1, 'orders', 0, 1, 0, 0, 'committed', 1, 'sha-256=:G6bPl933MZKLLCVpHqiwuNB3by473Y4NMrVaQ2fV4Q4=:', 3188355012, 1795829666.667994, 1795829666.9634364);
INSERT INTO public.outbox_tpc_branch VALUES (2, 'orders', 1, 1, 0, 0, 'aborted', 1, 'sha-256=:rFeJApQ9VxghNDceNmS3TJPR8is3ajSy0psZIpkIFBg=:', 768190865, 1795829667.2221057, 1795829667.3936899);
INSERT INTO public.outbox_tpc_branch VALUES (3, 'orders', 1, 2, 0, 0, 'committed', 1, 'sha-256=:rFeJApQ9VxghNDceNmS3TJPR8is3ajSy0psZIpkIFBg=:', 283175417, 1795829667.7265022, 1795829667.8135917);
INSERT INTO public.outbox_tpc_branch VALUES (4, 'orders', 2, 1, 0, 0, 'prepared', 1, 'sha-256=:knPcw8XVFrWSNKZLR5iRrGZLZZ4Be44+t2X0ZYx4Dko=:', 3233912392, 1795829667.9732141, NULL);
INSERT INTO public.outbox_tpc_hidden VALUES (4, NULL);
INSERT INTO public.outbox_tpc_quarantine VALUES ('orders.0.1.0.0.0', '{"id": 0, "amount": 0.5}', 422, 1795829667.0899727, 'no such card');
INSERT INTO public.outbox_tpc_queue VALUES ('orders', 1, 0, 0, 2, 3, '{"traceparent": "00-5b1e1e8e8244ec876c2a57a5d5f0f3e1-ed17ece71a29ba8e-03"}', 1795829667.8154051);
INSERT INTO public.outbox_tpc_refusals VALUES ('orders', 1);
INSERT INTO public.outbox_tpc_schema VALUES (1, '061f4e9a4af643eb9c930e4d87f0691b', 'outbox');
INSERT INTO public.outbox_tpc_sender VALUES (1, 'cf5c3fced306a0edb8c915094e9f82b9', 0);
INSERT INTO public.outbox_tpc_transaction VALUES ('orders', 0, 1, 'committed', NULL, '{"traceparent": "00-49d0614caad8cd416ab8337dd89f0a5d-e2bb9477e8e50ecd-03"}');
INSERT INTO public.outbox_tpc_transaction VALUES ('orders', 1, 1, 'aborted', NULL, '{"traceparent": "00-895a242c29a1c2592aff5eedbbcfda7e-b33d4e23e7df8890-03"}');
INSERT INTO public.outbox_tpc_transaction VALUES ('orders', 1, 2, 'committed', NULL, '{"traceparent": "00-5b1e1e8e8244ec876c2a57a5d5f0f3e1-57d7154465a46191-03"}');
INSERT INTO public.outbox_tpc_transaction VALUES ('orders', 2, 1, NULL, NULL, '{"traceparent": "00-a6fac6f1e253591cb09e160d5090e2db-de3650f9593e115a-03"}');
INSERT INTO public.tpc_application VALUES ('orders', NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.tpc_delivery VALUES ('orders.0.1', 'ledger', 0, 1795829667.0384784, 0, NULL, NULL, false, NULL, NULL);
INSERT INTO public.tpc_delivery VALUES ('orders.0.1', 'notifier', 1, 1795829667.0384784, 0, NULL, NULL, false, NULL, NULL);
INSERT INTO public.tpc_delivery VALUES ('orders.1.1', 'ledger', 0, 1795829667.460036, 0, NULL, NULL, false, NULL, NULL);
INSERT INTO public.tpc_delivery VALUES ('orders.1.1', 'notifier', 1, 1795829667.460036, 0, NULL, NULL, false, NULL, NULL);
INSERT INTO public.tpc_delivery VALUES ('orders.1.2', 'ledger', 0, 1795829667.8414333, 0, NULL, NULL, false, NULL, NULL);
INSERT INTO public.tpc_delivery VALUES ('orders.1.2', 'notifier', 1, 1795829667.8414333, 0, NULL, NULL, false, NULL, NULL);
INSERT INTO public.tpc_delivery VALUES ('orders.2.1', 'notifier', 1, NULL, 0, NULL, NULL, false, NULL, NULL);
INSERT INTO public.tpc_delivery VALUES ('orders.2.1', 'ledger', 0, NULL, 0, NULL, NULL, false, NULL, NULL);
INSERT INTO public.tpc_receipt VALUES ('orders.1.2', 'notifier', '0.0', 1, 'commit', 1, 'sha-256=:rFeJApQ9VxghNDceNmS3TJPR8is3ajSy0psZIpkIFBg=:', 'null');
INSERT INTO public.tpc_receipt VALUES ('orders.1.2', 'ledger', '0.0', 0, 'commit', 1, 'sha-256=:rFeJApQ9VxghNDceNmS3TJPR8is3ajSy0psZIpkIFBg=:', 'null');
INSERT INTO public.tpc_receipt VALUES ('orders.2.1', 'notifier', '0.0', 1, 'commit', 1, 'sha-256=:knPcw8XVFrWSNKZLR5iRrGZLZZ4Be44+t2X0ZYx4Dko=:', 'null');
INSERT INTO public.tpc_receipt VALUES ('orders.2.1', 'ledger', '0.0', 0, 'commit', 1, 'sha-256=:knPcw8XVFrWSNKZLR5iRrGZLZZ4Be44+t2X0ZYx4Dko=:', 'null');
INSERT INTO public.tpc_run VALUES ('orders', 'a-run', 1, 1795829666.370398, 0);
INSERT INTO public.tpc_schema VALUES (1, '6a1a35688f394c43ad3cc6d495af3463', 'log');
INSERT INTO public.tpc_transaction VALUES ('orders.0.1', 'orders', 0, 1, 'a-run', 'committed', 'commit', 1795829666.3717902, 1795829666.9057915, 1795829667.0384784, 900, 1795830566.366801, '{"traceparent":"00-49d0614caad8cd416ab8337dd89f0a5d-367e9227676255d6-03"}', NULL, NULL, 1795829666340616738, '{"service.instance.id": "024ab16d-5258-4c6b-b7cc-cc7d926a1e2f", "host.name": "vm", "ip": "vm", "telemetry.sdk.language": "python", "telemetry.sdk.name": "opentelemetry", "telemetry.sdk.version": "1.45.1", "service.name": "ParticipantSink"}', NULL, NULL, NULL, NULL, NULL, 1, NULL, NULL, NULL, NULL, NULL, '70490cfe5b5e31c2fe11de90224085d7f5bfa20fb3287a930770a539df2c4f8f');
INSERT INTO public.tpc_transaction VALUES ('orders.1.1', 'orders', 1, 1, 'a-run', 'aborted', 'abort', 1795829667.115364, 1795829667.318222, 1795829667.460036, 900, 1795830567.114769, '{"traceparent":"00-895a242c29a1c2592aff5eedbbcfda7e-0a67c7ced05d4eaa-03"}', NULL, NULL, 1795829667109941710, '{"service.instance.id": "024ab16d-5258-4c6b-b7cc-cc7d926a1e2f", "host.name": "vm", "ip": "vm", "telemetry.sdk.language": "python", "telemetry.sdk.name": "opentelemetry", "telemetry.sdk.version": "1.45.1", "service.name": "ParticipantSink"}', NULL, NULL, NULL, NULL, NULL, 0, 'error', 'while it was written: RuntimeError: a task failed', NULL, NULL, NULL, 'e8fccb6822080a53636fe744a062a74bbbf2c7ae056eee2732753241a08a6069');
INSERT INTO public.tpc_transaction VALUES ('orders.1.2', 'orders', 1, 2, 'a-run', 'committed', 'commit', 1795829667.5186498, 1795829667.767912, 1795829667.8414333, 900, 1795830567.516183, '{"traceparent":"00-5b1e1e8e8244ec876c2a57a5d5f0f3e1-561a06fa742996ff-03"}', '00-895a242c29a1c2592aff5eedbbcfda7e-0a67c7ced05d4eaa-03', NULL, 1795829667501206766, '{"service.instance.id": "024ab16d-5258-4c6b-b7cc-cc7d926a1e2f", "host.name": "vm", "ip": "vm", "telemetry.sdk.language": "python", "telemetry.sdk.name": "opentelemetry", "telemetry.sdk.version": "1.45.1", "service.name": "ParticipantSink"}', NULL, NULL, NULL, NULL, NULL, 1, NULL, NULL, NULL, NULL, NULL, '9a5ed2978cead0d362a5ad360b9a756b62891833a8dfdb5341d8a96c13a0e356');
INSERT INTO public.tpc_transaction VALUES ('orders.2.1', 'orders', 2, 1, 'a-run', 'committing', 'commit', 1795829667.8686574, 1795829668.017812, NULL, 900, 1795830567.867246, '{"traceparent":"00-a6fac6f1e253591cb09e160d5090e2db-bf1b2ec2cb6b2a70-03"}', NULL, NULL, 1795829667860399778, '{"service.instance.id": "024ab16d-5258-4c6b-b7cc-cc7d926a1e2f", "host.name": "vm", "ip": "vm", "telemetry.sdk.language": "python", "telemetry.sdk.name": "opentelemetry", "telemetry.sdk.version": "1.45.1", "service.name": "ParticipantSink"}', NULL, NULL, NULL, NULL, NULL, 1, NULL, NULL, NULL, NULL, NULL, '7b0bf94f055926126b916923f9d909097cae4ec50d111c076b0f2f7f6c6e24a0');
SELECT pg_catalog.setval('public.orders_tpc_branch_tag_seq', 4, true);
SELECT pg_catalog.setval('public.outbox_tpc_branch_tag_seq', 4, true);
SELECT pg_catalog.setval('public.outbox_tpc_by_hand_number_seq', 1, false);
ALTER TABLE ONLY public.events_tpc_event
    ADD CONSTRAINT events_tpc_event_pkey PRIMARY KEY ("position");
ALTER TABLE ONLY public.events_tpc_key
    ADD CONSTRAINT events_tpc_key_pkey PRIMARY KEY (producer, id);
ALTER TABLE ONLY public.events_tpc_passed
    ADD CONSTRAINT events_tpc_passed_pkey PRIMARY KEY (at);
ALTER TABLE ONLY public.events_tpc_reader
    ADD CONSTRAINT events_tpc_reader_pkey PRIMARY KEY (reader);
ALTER TABLE ONLY public.orders_tpc_application
    ADD CONSTRAINT orders_tpc_application_pkey PRIMARY KEY (application);
ALTER TABLE ONLY public.orders_tpc_branch
    ADD CONSTRAINT orders_tpc_branch_application_batch_attempt_partition_task__key UNIQUE (application, batch, attempt, partition, task_attempt);
ALTER TABLE ONLY public.orders_tpc_branch
    ADD CONSTRAINT orders_tpc_branch_pkey PRIMARY KEY (tag);
ALTER TABLE ONLY public.orders_tpc_hidden
    ADD CONSTRAINT orders_tpc_hidden_pkey PRIMARY KEY (tag);
ALTER TABLE ONLY public.orders_tpc_transaction
    ADD CONSTRAINT orders_tpc_transaction_pkey PRIMARY KEY (application, batch, attempt);
ALTER TABLE ONLY public.outbox_tpc_application
    ADD CONSTRAINT outbox_tpc_application_pkey PRIMARY KEY (application);
ALTER TABLE ONLY public.outbox_tpc_branch
    ADD CONSTRAINT outbox_tpc_branch_application_batch_attempt_partition_task__key UNIQUE (application, batch, attempt, partition, task_attempt);
ALTER TABLE ONLY public.outbox_tpc_branch
    ADD CONSTRAINT outbox_tpc_branch_pkey PRIMARY KEY (tag);
ALTER TABLE ONLY public.outbox_tpc_by_hand
    ADD CONSTRAINT outbox_tpc_by_hand_pkey PRIMARY KEY (number);
ALTER TABLE ONLY public.outbox_tpc_hidden
    ADD CONSTRAINT outbox_tpc_hidden_pkey PRIMARY KEY (tag);
ALTER TABLE ONLY public.outbox_tpc
    ADD CONSTRAINT outbox_tpc_pkey PRIMARY KEY (tpc_tag, tpc_row);
ALTER TABLE ONLY public.outbox_tpc_quarantine
    ADD CONSTRAINT outbox_tpc_quarantine_pkey PRIMARY KEY (key);
ALTER TABLE ONLY public.outbox_tpc_queue
    ADD CONSTRAINT outbox_tpc_queue_pkey PRIMARY KEY (application, batch, partition, task_attempt);
ALTER TABLE ONLY public.outbox_tpc_refusals
    ADD CONSTRAINT outbox_tpc_refusals_pkey PRIMARY KEY (application);
ALTER TABLE ONLY public.outbox_tpc_sender
    ADD CONSTRAINT outbox_tpc_sender_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.outbox_tpc_transaction
    ADD CONSTRAINT outbox_tpc_transaction_pkey PRIMARY KEY (application, batch, attempt);
ALTER TABLE ONLY public.tpc_application
    ADD CONSTRAINT tpc_application_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.tpc_application
    ADD CONSTRAINT tpc_application_query_key UNIQUE (query);
ALTER TABLE ONLY public.tpc_delivery
    ADD CONSTRAINT tpc_delivery_pkey PRIMARY KEY (transaction_id, participant);
ALTER TABLE ONLY public.tpc_receipt
    ADD CONSTRAINT tpc_receipt_pkey PRIMARY KEY (transaction_id, participant, branch);
ALTER TABLE ONLY public.tpc_run
    ADD CONSTRAINT tpc_run_application_sequence_key UNIQUE (application, sequence);
ALTER TABLE ONLY public.tpc_run
    ADD CONSTRAINT tpc_run_pkey PRIMARY KEY (application, run);
ALTER TABLE ONLY public.tpc_transaction
    ADD CONSTRAINT tpc_transaction_application_batch_attempt_key UNIQUE (application, batch, attempt);
ALTER TABLE ONLY public.tpc_transaction
    ADD CONSTRAINT tpc_transaction_pkey PRIMARY KEY (id);
CREATE INDEX events_tpc_key_position ON public.events_tpc_key USING btree ("position");
CREATE INDEX orders_tpc_open ON public.orders_tpc_branch USING btree (tag) WHERE (sealed IS NULL);
CREATE INDEX orders_tpc_tag ON public.orders_tpc USING brin (tpc_tag);
CREATE INDEX outbox_tpc_by_hand_key ON public.outbox_tpc_by_hand USING btree (key);
CREATE INDEX outbox_tpc_open ON public.outbox_tpc_branch USING btree (tag) WHERE (sealed IS NULL);
CREATE INDEX tpc_not_committed ON public.tpc_transaction USING btree (application, batch, attempt) WHERE (state = ANY (ARRAY['aborted'::text, 'concluded'::text]));
CREATE UNIQUE INDEX tpc_one_commit ON public.tpc_transaction USING btree (application, batch) WHERE (decision = 'commit'::text);
CREATE INDEX tpc_unfinished ON public.tpc_transaction USING btree (application, batch, attempt) WHERE (finished IS NULL);
