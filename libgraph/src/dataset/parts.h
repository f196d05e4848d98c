/* What a reader gathers from a file, and how it becomes a dataset.
 *
 *     reader (read_*.c) -> mg_parts -> mg_parts_finish (assemble.c, labels.c) -> mg_dataset, checked (check.c)
 *
 * A reader fills what the file has, with the numbers of the file; finishing mirrors edges, maps labels to classes,
 * takes splits off unlabelled items and writes the story.
 */
#ifndef MG_DATASET_PARTS_H
#define MG_DATASET_PARTS_H
#include "megagraph/dataset.h"

/* Text that grows; status is negative once memory ran out. */
typedef struct mg_story {
    char *text;
    int64_t length, capacity;
    int status;
} mg_story;
void mg_story_add(mg_story *story, const char *format, ...) __attribute__((format(printf, 2, 3)));

typedef struct mg_parts {
    const mg_dataset_desc *desc;
    const char *path;
    const char *labels_from; /* what errors about labels call their place, "member node_labels"; NULL: "labels" */
    int64_t nodes;
    int64_t edges, edge_capacity;
    int64_t *sources,
        *targets;        /* [edges] as given, 0-based; room for edge_capacity where mg_parts_add_edge made them */
    int keep_directions; /* the file says that edges are kept as they are */
    int64_t edge_columns;
    float *edge_values; /* [edges][edge_columns] */
    int64_t feature_count;
    float *features; /* [nodes][feature_count] */
    int64_t graphs;
    int64_t *segments; /* [graphs + 1]; NULL: one graph */
    mg_dataset_level level;
    mg_dataset_task task;   /* that the file names; the caller's goes before */
    int64_t label_columns;  /* 0: no labels */
    double *label_values;   /* [items][label_columns], NaN: unlabelled; or */
    char **label_strings;   /* [items], NULL: unlabelled; label_columns is 1 */
    int minus_one_is_class; /* -1 is a label like others */
    int64_t classes;        /* with class_names: labels are -1, NaN or 0..classes-1 */
    char **class_names;
    int64_t splits;
    int split_follows; /* the caller of mg_parts_finish makes one */
    uint8_t *split;    /* [splits][items] */
    char **node_names;
    mg_story story;
} mg_parts;

void mg_parts_release(mg_parts *parts);

/* Adds an edge with its edge_columns values. */
int mg_parts_add_edge(mg_parts *parts, int64_t source, int64_t target, const float *values);
/* values: [rows][columns], which becomes the right part of *matrix [rows][*matrix_columns]. Takes values over. */
int mg_parts_append_columns(float **matrix, int64_t *matrix_columns, float *values, int64_t columns, int64_t rows);
/* Whole numbers in each column become one-hot columns, in ascending order of the values: the same place as given. Tells
   the story; keeps the numbers where there are fractions or far too many values. what: "node labels". */
int mg_parts_one_hot(mg_parts *parts, float **matrix, int64_t *columns, int64_t rows, const char *what);

/* side.c: the CSV files of a descriptor, "id,label" and "id,value,...". find: the node of an id, -1 for none, or a
   negative status below -1; it may make new nodes, so parts->nodes is looked at only behind the last. */
typedef int64_t mg_find_node(void *context, const char *id);
int mg_parts_read_side_files(mg_parts *parts, mg_find_node *find, void *context, int64_t (*count)(void *context));

/* Makes *out of the parts, which are used up, also on error (mg_parts_release is then still fine). */
int mg_parts_finish(mg_dataset **out, mg_parts *parts);

/* labels.c: sets task, classes, class_names, labels, targets of data from the parts. */
int mg_labels_assign(mg_dataset *data, mg_parts *parts);
int64_t mg_dataset_labelled(const mg_dataset *data); /* items with a label or a target */
int mg_dataset_is_labelled(const mg_dataset *data, int64_t item);

/* check.c: everything that dataset.h says of a dataset. what: the file's name, for errors. */
int mg_dataset_check(const mg_dataset *data, const char *what);
/* Refuses `nodes` claimed by a header or an id where the file lists only `listed` things: memory follows the input. */
int mg_parts_plausible_nodes(const char *path, int64_t nodes, int64_t listed);

/* The name of a file or folder without folders and ending. */
char *mg_dataset_name(const char *path);
/* "format" with values, as a new block; NULL without memory. */
char *mg_path(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The first name in a folder, by bytes, that ends with ending: *found is a new block, or NULL where there is none;
   *count is how many there are. */
int mg_folder_find(char **found, int64_t *count, const char *folder, const char *ending);

/* --- strings: an array of strings is one block, pointers first, text behind --- */

/* strings[count] (NULL stays NULL) as one block, or NULL without memory. */
char **mg_strings_copy(char *const *strings, int64_t count);
/* Strings that lie one after the other in text, each ended by NUL, as one block. text: bytes long. */
char **mg_strings_pack(const char *text, int64_t bytes, int64_t count);

/* --- readers --- */
int mg_read_npz(mg_parts *parts);
int mg_read_ogb(mg_parts *parts);
int mg_read_tu(mg_parts *parts);
int mg_read_metis(mg_parts *parts);
int mg_read_mtx(mg_parts *parts);
int mg_read_edges(mg_parts *parts);
#endif
