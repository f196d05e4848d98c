/* safetensors.h: named fp32 tensors in one file, the format of the safetensors package:
 *
 *     8 bytes   header length, little endian
 *     header    JSON: {"name": {"dtype": "F32", "shape": [..], "data_offsets": [begin, end]}, ...}, padded with spaces
 *     data      the tensors one after another, without holes; offsets count from the first byte of data
 *
 * A file is checked against its own size before anything of it is used; a wrong one gives one line that says what was
 * expected and found.
 */
#ifndef MEGAGRAPH_APPS_SAFETENSORS_H
#define MEGAGRAPH_APPS_SAFETENSORS_H
#include <stdint.h>

typedef struct mg_tensor {
    const char *name;
    int32_t rank;
    int64_t shape[3];
    const float *data;
} mg_tensor;

/* Writes and syncs `path`. *bytes and *hash are the file's (mg_graph_hash_bytes by blocks of 1 MiB, as
 * mg_safetensors_hash). */
int mg_safetensors_write(int64_t *bytes, uint64_t *hash, const char *path, const mg_tensor *tensors, int64_t count);
int mg_safetensors_hash(int64_t *bytes, uint64_t *hash, const char *path);

typedef struct mg_safetensors mg_safetensors; /* an open file */
int mg_safetensors_open(mg_safetensors **out, const char *path);
void mg_safetensors_close(mg_safetensors *file);
/* Reads a tensor into data; its shape must be the tensor's (tensor->data is not used). */
int mg_safetensors_read(float *data, const mg_safetensors *file, const mg_tensor *tensor);
/* Shape of a tensor: 0, or -ENOENT. */
int mg_safetensors_shape(int32_t *rank, int64_t shape[3], const mg_safetensors *file, const char *name);

/* Checks a header against the bytes of data that follow it: the part of open that hostile input meets. */
int mg_safetensors_check(const char *name, const char *header, int64_t header_bytes, int64_t data_bytes);
#endif
