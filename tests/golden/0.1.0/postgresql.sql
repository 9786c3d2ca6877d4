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
    checksum text NOT NULL
);
ALTER TABLE ONLY public.orders_tpc_branch ALTER COLUMN tag SET DEFAULT nextval('public.orders_tpc_branch_tag_seq'::regclass);
ALTER TABLE ONLY public.outbox_tpc_branch ALTER COLUMN tag SET DEFAULT nextval('public.outbox_tpc_branch_tag_seq'::regclass);
ALTER TABLE ONLY public.outbox_tpc_by_hand ALTER COLUMN number SET DEFAULT nextval('public.outbox_tpc_by_hand_number_seq'::regclass);
INSERT INTO public.events_tpc_event VALUES (1, 'shop', 'e1', '{"id": 1}', 1795829171.948307, '{}');
INSERT INTO public.events_tpc_event VALUES (2, 'shop', 'e2', '{"id": 2}', 1795829171.948307, '{}');
INSERT INTO public.events_tpc_head VALUES (1, '03eab7e128e1498cb0e731189058ae31', 2, 0, 604800, 7776000);
INSERT INTO public.events_tpc_key VALUES ('shop', 'e1', '037c9214eef74cc3887f3a4f085b4e17d76280dafd273b0ee160c09c4ba1cfd4', 1, 1795829171.948307);
INSERT INTO public.events_tpc_key VALUES ('shop', 'e2', '9e7e65453739bbc64ba155eed18a37bd5fb1196c7f29ded1da660b94414d7ad8', 2, 1795829171.948307);
INSERT INTO public.events_tpc_passed VALUES (1795829172.0371819, 1);
INSERT INTO public.events_tpc_reader VALUES ('orders', 1, 'e1', 1795829172.0371819);
INSERT INTO public.orders_tpc VALUES (0, 0.5, 1);
INSERT INTO public.orders_tpc VALUES (1, 1.5, 3);
INSERT INTO public.orders_tpc VALUES (2, 2.5, 4);
INSERT INTO public.orders_tpc_application VALUES ('orders', NULL, 'ledger');
INSERT INTO public.orders_tpc_branch VALUES (1, 'orders', 0, 1, 0, 0, 'committed', 1, 'sha-256=:G6bPl933MZKLLCVpHqiwuNB3by473Y4NMrVaQ2fV4Q4=:', 3188355012, 1795829171.066082, 1795829171.1379495);
INSERT INTO public.orders_tpc_branch VALUES (2, 'orders', 1, 1, 0, 0, 'aborted', 1, 'sha-256=:rFeJApQ9VxghNDceNmS3TJPR8is3ajSy0psZIpkIFBg=:', 768190865, 1795829171.2866907, 1795829171.332908);
INSERT INTO public.orders_tpc_branch VALUES (3, 'orders', 1, 2, 0, 0, 'committed', 1, 'sha-256=:rFeJApQ9VxghNDceNmS3TJPR8is3ajSy0psZIpkIFBg=:', 283175417, 1795829171.386865, 1795829171.4825497);
INSERT INTO public.orders_tpc_branch VALUES (4, 'orders', 2, 1, 0, 0, 'prepared', 1, 'sha-256=:knPcw8XVFrWSNKZLR5iRrGZLZZ4Be44+t2X0ZYx4Dko=:', 3233912392, 1795829171.5896194, NULL);
INSERT INTO public.orders_tpc_hidden VALUES (4, NULL);
INSERT INTO public.orders_tpc_schema VALUES (1, '796edc211c9143e8a6b6f6b5cf7dda7d', 'tagged_rows');
INSERT INTO public.orders_tpc_transaction VALUES ('orders', 0, 1, 'committed', NULL, '{"traceparent": "00-5ea981ddc9dc8b619bee26c84d4be397-68db1087c2fbbd4e-03"}');
INSERT INTO public.orders_tpc_transaction VALUES ('orders', 1, 1, 'aborted', NULL, '{"traceparent": "00-619716eeb10b0b158e08769e04bdeb63-4b433169faac228e-03"}');
INSERT INTO public.orders_tpc_transaction VALUES ('orders', 1, 2, 'committed', NULL, '{"traceparent": "00-7cba49c668db84ceb51feba6b2159d49-fdb4bfbe7189c974-03"}');
INSERT INTO public.orders_tpc_transaction VALUES ('orders', 2, 1, NULL, NULL, '{"traceparent": "00-6dcee36abcf80501cc018143bed98770-17535f4ab3a8607a-03"}');
INSERT INTO public.outbox_tpc VALUES (3, 0, '{"id": 1, "amount": 1.5}');
INSERT INTO public.outbox_tpc VALUES (4, 0, '{"id": 2, "amount": 2.5}');
INSERT INTO public.outbox_tpc_application VALUES ('orders', NULL, 'notifier');
INSERT INTO public.outbox_tpc_branch VALUES (1, 'orders', 0, 1, 0, 0, 'committed', 1, 'sha-256=:G6bPl933MZKLLCVpHqiwuNB3by473Y4NMrVaQ2fV4Q4=:', 3188355012, 1795829170.938816, 1795829171.158632);
INSERT INTO public.outbox_tpc_branch VALUES (2, 'orders', 1, 1, 0, 0, 'aborted', 1, 'sha-256=:rFeJApQ9VxghNDceNmS3TJPR8is3ajSy0psZIpkIFBg=:', 768190865, 1795829171.293903, 1795829171.3378782);
INSERT INTO public.outbox_tpc_branch VALUES (3, 'orders', 1, 2, 0, 0, 'committed', 1, 'sha-256=:rFeJApQ9VxghNDceNmS3TJPR8is3ajSy0psZIpkIFBg=:', 283175417, 1795829171.3896391, 1795829171.455918);
INSERT INTO public.outbox_tpc_branch VALUES (4, 'orders', 2, 1, 0, 0, 'prepared', 1, 'sha-256=:knPcw8XVFrWSNKZLR5iRrGZLZZ4Be44+t2X0ZYx4Dko=:', 3233912392, 1795829171.587557, NULL);
INSERT INTO public.outbox_tpc_hidden VALUES (4, NULL);
INSERT INTO public.outbox_tpc_quarantine VALUES ('orders.0.1.0.0.0', '{"id": 0, "amount": 0.5}', 422, 1795829171.2671514, 'no such card');
INSERT INTO public.outbox_tpc_queue VALUES ('orders', 1, 0, 0, 2, 3, '{"traceparent": "00-7cba49c668db84ceb51feba6b2159d49-e0f594ebd007fbea-03"}', 1795829171.4583004);
INSERT INTO public.outbox_tpc_refusals VALUES ('orders', 1);
INSERT INTO public.outbox_tpc_schema VALUES (1, 'b8d8906af176479fa04332ca4700856e', 'outbox');
INSERT INTO public.outbox_tpc_sender VALUES (1, 'a54f8572e46c5b087b19fee2310488f0', 0);
INSERT INTO public.outbox_tpc_transaction VALUES ('orders', 0, 1, 'committed', NULL, '{"traceparent": "00-5ea981ddc9dc8b619bee26c84d4be397-bf68c91858add79a-03"}');
INSERT INTO public.outbox_tpc_transaction VALUES ('orders', 1, 1, 'aborted', NULL, '{"traceparent": "00-619716eeb10b0b158e08769e04bdeb63-dce21ee9e371f53c-03"}');
INSERT INTO public.outbox_tpc_transaction VALUES ('orders', 1, 2, 'committed', NULL, '{"traceparent": "00-7cba49c668db84ceb51feba6b2159d49-338d592e89ad1934-03"}');
INSERT INTO public.outbox_tpc_transaction VALUES ('orders', 2, 1, NULL, NULL, '{"traceparent": "00-6dcee36abcf80501cc018143bed98770-43f2c15fdbff4ff1-03"}');
INSERT INTO public.tpc_application VALUES ('orders', NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.tpc_delivery VALUES ('orders.0.1', 'ledger', 0, 1795829171.171856, 0, NULL, NULL, false, NULL, NULL);
INSERT INTO public.tpc_delivery VALUES ('orders.0.1', 'notifier', 1, 1795829171.171856, 0, NULL, NULL, false, NULL, NULL);
INSERT INTO public.tpc_delivery VALUES ('orders.1.1', 'ledger', 0, 1795829171.3438625, 0, NULL, NULL, false, NULL, NULL);
INSERT INTO public.tpc_delivery VALUES ('orders.1.1', 'notifier', 1, 1795829171.3438625, 0, NULL, NULL, false, NULL, NULL);
INSERT INTO public.tpc_delivery VALUES ('orders.1.2', 'ledger', 0, 1795829171.5147512, 0, NULL, NULL, false, NULL, NULL);
INSERT INTO public.tpc_delivery VALUES ('orders.1.2', 'notifier', 1, 1795829171.5147512, 0, NULL, NULL, false, NULL, NULL);
INSERT INTO public.tpc_delivery VALUES ('orders.2.1', 'notifier', 1, NULL, 0, NULL, NULL, false, NULL, NULL);
INSERT INTO public.tpc_delivery VALUES ('orders.2.1', 'ledger', 0, NULL, 0, NULL, NULL, false, NULL, NULL);
INSERT INTO public.tpc_receipt VALUES ('orders.1.2', 'notifier', '0.0', 1, 'commit', 1, 'sha-256=:rFeJApQ9VxghNDceNmS3TJPR8is3ajSy0psZIpkIFBg=:', 'null');
INSERT INTO public.tpc_receipt VALUES ('orders.1.2', 'ledger', '0.0', 0, 'commit', 1, 'sha-256=:rFeJApQ9VxghNDceNmS3TJPR8is3ajSy0psZIpkIFBg=:', 'null');
INSERT INTO public.tpc_receipt VALUES ('orders.2.1', 'notifier', '0.0', 1, 'commit', 1, 'sha-256=:knPcw8XVFrWSNKZLR5iRrGZLZZ4Be44+t2X0ZYx4Dko=:', 'null');
INSERT INTO public.tpc_receipt VALUES ('orders.2.1', 'ledger', '0.0', 0, 'commit', 1, 'sha-256=:knPcw8XVFrWSNKZLR5iRrGZLZZ4Be44+t2X0ZYx4Dko=:', 'null');
INSERT INTO public.tpc_run VALUES ('orders', 'a-run', 1, 1795829170.7988048, 0);
INSERT INTO public.tpc_schema VALUES (1, '459a677d3c774d8fbf2a8b3275bd146c', 'log');
INSERT INTO public.tpc_transaction VALUES ('orders.0.1', 'orders', 0, 1, 'a-run', 'committed', 'commit', 1795829170.8020258, 1795829171.1124976, 1795829171.171856, 900, 1795830070.792929, '{"traceparent":"00-5ea981ddc9dc8b619bee26c84d4be397-fa48fd3357f6849d-03"}', NULL, NULL, 1795829170787212019, '{"service.instance.id": "5573bbce-b673-4580-b127-cbce5371415b", "host.name": "vm", "ip": "vm", "telemetry.sdk.language": "python", "telemetry.sdk.name": "opentelemetry", "telemetry.sdk.version": "1.45.1", "service.name": "ParticipantSink"}', NULL, NULL, NULL, NULL, NULL, 1, NULL, NULL, NULL, NULL, '8c1683583b55b2b33ec2532d7bf879e04659634f415130781ef339f03c894d6f');
INSERT INTO public.tpc_transaction VALUES ('orders.1.1', 'orders', 1, 1, 'a-run', 'aborted', 'abort', 1795829171.221813, 1795829171.3230672, 1795829171.3438625, 900, 1795830071.219095, '{"traceparent":"00-619716eeb10b0b158e08769e04bdeb63-17c927dcb1deb17d-03"}', NULL, NULL, 1795829171215254582, '{"service.instance.id": "5573bbce-b673-4580-b127-cbce5371415b", "host.name": "vm", "ip": "vm", "telemetry.sdk.language": "python", "telemetry.sdk.name": "opentelemetry", "telemetry.sdk.version": "1.45.1", "service.name": "ParticipantSink"}', NULL, NULL, NULL, NULL, NULL, 0, 'error', 'while it was written: RuntimeError: a task failed', NULL, NULL, '170bbac77a1d7de5e766c08d3278bd34e1303c4ee556fc9bc4b7c18323dcd77f');
INSERT INTO public.tpc_transaction VALUES ('orders.1.2', 'orders', 1, 2, 'a-run', 'committed', 'commit', 1795829171.347527, 1795829171.4184573, 1795829171.5147512, 900, 1795830071.347204, '{"traceparent":"00-7cba49c668db84ceb51feba6b2159d49-342aad947941b4ff-03"}', '00-619716eeb10b0b158e08769e04bdeb63-17c927dcb1deb17d-03', NULL, 1795829171345858906, '{"service.instance.id": "5573bbce-b673-4580-b127-cbce5371415b", "host.name": "vm", "ip": "vm", "telemetry.sdk.language": "python", "telemetry.sdk.name": "opentelemetry", "telemetry.sdk.version": "1.45.1", "service.name": "ParticipantSink"}', NULL, NULL, NULL, NULL, NULL, 1, NULL, NULL, NULL, NULL, '026decca8d40004cc245d7df2e8bd50011915335793c7b982ba10b5999d0304a');
INSERT INTO public.tpc_transaction VALUES ('orders.2.1', 'orders', 2, 1, 'a-run', 'committing', 'commit', 1795829171.5483978, 1795829171.6256392, NULL, 900, 1795830071.548061, '{"traceparent":"00-6dcee36abcf80501cc018143bed98770-2e2130a7bcbf704a-03"}', NULL, NULL, 1795829171537370219, '{"service.instance.id": "5573bbce-b673-4580-b127-cbce5371415b", "host.name": "vm", "ip": "vm", "telemetry.sdk.language": "python", "telemetry.sdk.name": "opentelemetry", "telemetry.sdk.version": "1.45.1", "service.name": "ParticipantSink"}', NULL, NULL, NULL, NULL, NULL, 1, NULL, NULL, NULL, NULL, 'e6c35d5f8c806c4d67d2a57a72abc8a96bde2f187453cab99c84c12805bf11de');
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
