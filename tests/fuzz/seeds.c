/*
 * Writes a corpus for the fuzz targets to begin from, made by what makes the tests' inputs:
 * `fuzz_seeds FOLDER` fills FOLDER/TARGET/seed-NAME. Every seed is good input in the target's own
 * form, so that fuzzing starts deep.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/rpc/codec.h"
#include "pigpen/v1/admin.pb-c.h"
#include "pigpen/v1/attention.pb-c.h"
#include "tests/unit/vocab_build.h"

#define SEED_BYTES_MAX 65536u
#define PAYLOAD_BYTES  512u

static const char *corpus;

static void make_folder(const char *path)
{
    if (mkdir(path, 0777) != 0 && errno != EEXIST) {
        perror(path);
        exit(EXIT_FAILURE);
    }
}

static void put(const char *target, const char *name, const void *data, size_t bytes)
{
    char path[4096];
    (void)snprintf(path, sizeof(path), "%s/%s", corpus, target);
    make_folder(path);
    (void)snprintf(path, sizeof(path), "%s/%s/seed-%s", corpus, target, name);
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(data, 1, bytes, file) != bytes || fclose(file) != 0) {
        perror(path);
        exit(EXIT_FAILURE);
    }
}

/* A message behind its target's own first bytes. */
static void put_message(const char *target, const char *name, const uint8_t *first,
                        size_t first_bytes, const ProtobufCMessage *message, size_t payload_bytes)
{
    static uint8_t seed[SEED_BYTES_MAX];
    size_t bytes = 0;
    memcpy(seed, first, first_bytes);
    if (pp_codec_pack(message, payload_bytes, seed + first_bytes,
                      sizeof(seed) - first_bytes - payload_bytes, &bytes) != PP_OK) {
        (void)fprintf(stderr, "%s: does not fit\n", name);
        exit(EXIT_FAILURE);
    }
    memset(seed + first_bytes + bytes, 0, payload_bytes);
    put(target, name, seed, first_bytes + bytes + payload_bytes);
}

/* To the codec in pieces of 1, 8 and 256 bytes, to the service's decoders in one and in two. */
static void put_request(const char *name, uint8_t codec_index, int service_index,
                        const ProtobufCMessage *message, size_t payload_bytes)
{
    char full[64];
    static const uint8_t PIECES[] = {0, 7, 255};
    for (size_t index = 0; index < sizeof(PIECES); ++index) {
        const uint8_t first[] = {codec_index, PIECES[index]};
        (void)snprintf(full, sizeof(full), "%s-%u", name, PIECES[index]);
        put_message("codec_fuzz", full, first, 2, message, payload_bytes);
    }
    for (int cut = 0; service_index >= 0 && cut < 2; ++cut) {
        const uint8_t first = (uint8_t)(service_index + 6 * 11 * cut);
        (void)snprintf(full, sizeof(full), "%s-%d", name, cut);
        put_message("service_decode_fuzz", full, &first, 1, message, payload_bytes);
    }
}

static Pigpen__V1__PartRef part = PIGPEN__V1__PART_REF__INIT;

static void put_open(void)
{
    static uint8_t id[16] = "sixteen letters";
    Pigpen__V1__Model model = PIGPEN__V1__MODEL__INIT;
    model.fingerprint = (ProtobufCBinaryData){.len = 5, .data = id};
    model.layers = model.kv_heads = 2;
    model.q_heads = 4;
    model.head_dim = 16;
    model.kv_dtype = PIGPEN__V1__DTYPE__DTYPE_F16;
    Pigpen__V1__Estimator estimator = PIGPEN__V1__ESTIMATOR__INIT;
    estimator.kind = PIGPEN__V1__ESTIMATOR_KIND__ESTIMATOR_KIND_LSH;
    estimator.k = 4;
    estimator.l = 12;
    uint32_t dense[] = {0};
    Pigpen__V1__OpenPartRequest open = PIGPEN__V1__OPEN_PART_REQUEST__INIT;
    open.sequence_id = open.part_id = (ProtobufCBinaryData){.len = 16, .data = id};
    open.model = &model;
    open.kv_head_count = 2;
    open.estimator = &estimator;
    open.n_dense_layers = 1;
    open.dense_layers = dense;
    put_request("open", 0, 0, &open.base, 0);
}

static void put_append(void)
{
    Pigpen__V1__Section k = PIGPEN__V1__SECTION__INIT, v = PIGPEN__V1__SECTION__INIT;
    k.kind = PIGPEN__V1__SECTION_KIND__SECTION_KIND_K;
    v.kind = PIGPEN__V1__SECTION_KIND__SECTION_KIND_V;
    k.bytes = v.bytes = v.offset = PAYLOAD_BYTES / 2;
    Pigpen__V1__Section *sections[] = {&k, &v};
    Pigpen__V1__WorkerSegment segment = PIGPEN__V1__WORKER_SEGMENT__INIT;
    segment.count = 64;
    Pigpen__V1__AppendKvRequest append = PIGPEN__V1__APPEND_KV_REQUEST__INIT;
    append.part = &part;
    append.count = 4;
    append.n_sections = 2;
    append.sections = sections;
    put_request("append", 1, 1, &append.base, PAYLOAD_BYTES);
    append.segment = &segment;
    append.bulk = true;
    put_request("append-segment", 1, 1, &append.base, PAYLOAD_BYTES);
    Pigpen__V1__Status status;
    pigpen__v1__status__init(&status);
    static char reason[] = "APPEND_GAP";
    status.reason = reason;
    Pigpen__V1__AppendKvResponse answer = PIGPEN__V1__APPEND_KV_RESPONSE__INIT;
    answer.status = &status;
    put_request("append-answer", 2, -1, &answer.base, 0);
}

static void put_attend(void)
{
    uint64_t seeds[] = {7};
    Pigpen__V1__AttendItem item = PIGPEN__V1__ATTEND_ITEM__INIT;
    item.handle = 1;
    item.held_tokens = 5;
    item.q_rows = 1;
    item.n_seeds = 1;
    item.seeds = seeds;
    Pigpen__V1__AttendItem *items[] = {&item, &item};
    Pigpen__V1__Section q[2] = {PIGPEN__V1__SECTION__INIT, PIGPEN__V1__SECTION__INIT};
    q[0].kind = q[1].kind = PIGPEN__V1__SECTION_KIND__SECTION_KIND_Q;
    q[0].bytes = q[1].bytes = q[1].offset = PAYLOAD_BYTES / 2;
    q[1].item = 1;
    Pigpen__V1__Section *sections[] = {&q[0], &q[1]};
    Pigpen__V1__AttendRequest attend = PIGPEN__V1__ATTEND_REQUEST__INIT;
    attend.incarnation = 1;
    attend.n_items = attend.n_sections = 2;
    attend.items = items;
    attend.sections = sections;
    put_request("attend", 3, 2, &attend.base, PAYLOAD_BYTES);
    Pigpen__V1__AttendResult result = PIGPEN__V1__ATTEND_RESULT__INIT;
    result.keys_held = 10;
    Pigpen__V1__AttendResult *results[] = {&result};
    Pigpen__V1__AttendResponse answer = PIGPEN__V1__ATTEND_RESPONSE__INIT;
    answer.n_results = answer.n_sections = 1;
    answer.results = results;
    answer.sections = sections;
    put_request("attend-answer", 4, -1, &answer.base, PAYLOAD_BYTES);
}

static void put_others(void)
{
    Pigpen__V1__ReadKvRequest read = PIGPEN__V1__READ_KV_REQUEST__INIT;
    const uint8_t read_first = 3;
    read.part = &part;
    read.count = 10;
    put_message("service_decode_fuzz", "read", &read_first, 1, &read.base, 0);
    Pigpen__V1__ReadKvResponse piece = PIGPEN__V1__READ_KV_RESPONSE__INIT;
    piece.count = 10;
    put_request("read-answer", 5, -1, &piece.base, PAYLOAD_BYTES);
    uint64_t handles[] = {1, 2, 3};
    Pigpen__V1__RenewPartsRequest renew = PIGPEN__V1__RENEW_PARTS_REQUEST__INIT;
    renew.incarnation = 1;
    renew.n_handles = 3;
    renew.handles = handles;
    put_request("renew", 6, 4, &renew.base, 0);
    uint32_t layers[] = {0, 1};
    Pigpen__V1__SealPartRequest seal = PIGPEN__V1__SEAL_PART_REQUEST__INIT;
    const uint8_t seal_first = 5;
    seal.part = &part;
    seal.n_layers = 2;
    seal.layers = layers;
    put_message("service_decode_fuzz", "seal", &seal_first, 1, &seal.base, 0);
    Pigpen__V1__LayerInfo layer = PIGPEN__V1__LAYER_INFO__INIT;
    Pigpen__V1__LayerInfo *layer_infos[] = {&layer, &layer};
    Pigpen__V1__PartInfo info = PIGPEN__V1__PART_INFO__INIT;
    info.n_layers = 2;
    info.layers = layer_infos;
    Pigpen__V1__GetPartResponse got = PIGPEN__V1__GET_PART_RESPONSE__INIT;
    got.part = &info;
    put_request("get-answer", 7, -1, &got.base, 0);
}

/* Whole models: one tensor and keys less each time, and of each pre-tokenizer. */
static void put_models(void)
{
    static const char *const PRES[] = {"smollm", "gpt-2", "llama-bpe", "qwen2"};
    for (size_t index = 0; index < 4; ++index) {
        const struct gguf_build_llama llama = {1 + (uint32_t)index % 2, 8, 2, 1, 16, 300};
        const struct vocab_build vocab = {.pre = PRES[index],
                                          .merges = {"b c", "a b"},
                                          .controls = {"<|im_start|>", "<|im_end|>"},
                                          .users = {"<u>"}};
        struct gguf_build build;
        gguf_build_begin(&build);
        gguf_build_llama_keys(&build, &llama);
        vocab_build_keys(&build, &vocab);
        gguf_build_key_u32(&build, "tokenizer.ggml.eos_token_id", 259);
        gguf_build_key_bool(&build, "tokenizer.ggml.add_bos_token", index % 2);
        gguf_build_key_text(&build, "tokenizer.chat_template",
                            "{{ '<|im_start|>system\nYou<|im_end|>\n' }}");
        gguf_build_data(&build, gguf_build_llama_tensors(&build, &llama, NULL));
        put("gguf_fuzz", PRES[index], build.data, build.bytes);
        gguf_build_free(&build);
    }
}

/* The first byte picks the pre-tokenizer, up to the NUL stand merges. */
static void put_texts(void)
{
    static const char *const TEXTS[] = {
        "Hello, world! It's 1234567 o'clock.", "\xec\x95\x88\xeb\x85\x95 \xf0\x9f\x98\x80",
        "    int main(void)\n{\n\treturn 0;\n}", "abcabcabab <|a|> <|ab|> dddd",
        "\xd0\x9f\xd1\x80\xd0\xb8\xd0\xb2\xd0\xb5\xd1\x82 \n\n\n  \t x"};
    char seed[256], name[16];
    for (size_t index = 0; index < 4 * sizeof(TEXTS) / sizeof(TEXTS[0]); ++index) {
        const char *text = TEXTS[index / 4];
        int bytes = snprintf(seed, sizeof(seed), "%cbcda%c%s", (int)(index % 4), 0, text);
        (void)snprintf(name, sizeof(name), "%zu", index);
        put("tokenizer_fuzz", name, seed, (size_t)bytes);
    }
}

static void put_options(void)
{
    static const char YAML[] = "number: 3\nsize: 4GiB # of it\nduration: 1500ms\nflag: true\n"
                               "text: \"a b\"\nchoice: 'off'\nreal: 0.5\n";
    static const char FLAGS[] =
        "--number=3\n--size\n50%\n-t\nword\n--no-flag\n--choice=try\nprompt";
    put("options_fuzz", "yaml", YAML, sizeof(YAML) - 1);
    put("options_fuzz", "flags", FLAGS, sizeof(FLAGS) - 1);
    put("options_fuzz", "help", "--help", 6);
}

static void put_manifest(void)
{
    static const char MANIFEST[] =
        "{\"format\":\"pigpen-document\",\"version\":1,\"model\":{\"fingerprint\":\"0af3\","
        "\"layers\":2,\"q_heads\":4,\"kv_heads\":2,\"head_dim\":8},\"kv_dtype\":\"bf16\","
        "\"tokens\":70,\"balanced\":true,\"crc32c\":{\"tokens\":1,\"balances\":2,"
        "\"k\":[3,4],\"v\":[5,4294967295]}}";
    put("document_fuzz", "manifest", MANIFEST, sizeof(MANIFEST) - 1);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        (void)fprintf(stderr, "usage: fuzz_seeds FOLDER\n");
        return 2;
    }
    corpus = argv[1];
    part.handle = part.incarnation = 1;
    make_folder(corpus);
    put_open();
    put_append();
    put_attend();
    put_others();
    put_models();
    put_manifest();
    put_texts();
    put_options();
    return EXIT_SUCCESS;
}
