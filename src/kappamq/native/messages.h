/* Creates messages from plain arguments without the Python constructor, which defines what arguments mean and takes five times as
   long. The only C here that knows Python's types: included once, by _kernel. */
#ifndef KAPPAMQ_MESSAGES_H
#define KAPPAMQ_MESSAGES_H

#include <Python.h>
#include <stddef.h>
#include <structmember.h>

enum message_field { TOPIC, BODY, TAGS, KEYS, PROPERTIES, FLAG, DELAY_LEVEL, WAIT_STORED, SHARDING_KEY, TRANSACTION_ID, DELAY, DELIVER_AT, FIELDS };

static PyTypeObject *message_type; /* NULL until it is known; kept for ever */
static PyObject *message_names[FIELDS], *message_defaults[FIELDS]; /* no defaults for topic, body and properties */
static Py_ssize_t message_at[FIELDS];

static inline PyObject **message_slot(PyObject *message, enum message_field field)
{
    return (PyObject **)((char *)message + message_at[field]);
}

static inline int is_text(PyObject *value) { return PyUnicode_CheckExact(value); }

static inline int is_plain_tag(PyObject *tag)
{
    if (!is_text(tag) || PyUnicode_READY(tag) || !PyUnicode_IS_ASCII(tag))
        return 0;
    const Py_UCS1 *text = PyUnicode_1BYTE_DATA(tag);
    for (Py_ssize_t n = 0; n < PyUnicode_GET_LENGTH(tag); n++)
        if (!Py_ISALNUM(text[n]))
            return 0;
    return 1;
}

/* Whether this value needs none of the constructor's checks. */
static int is_plain(enum message_field field, PyObject *value)
{
    switch (field) {
    case TOPIC:
        return is_text(value) && PyUnicode_GET_LENGTH(value) > 0;
    case BODY:
        return PyBytes_CheckExact(value);
    case TAGS:
        return is_plain_tag(value);
    case KEYS:
        return PyTuple_CheckExact(value) && !PyTuple_GET_SIZE(value);
    case SHARDING_KEY:
    case TRANSACTION_ID:
        return is_text(value);
    case PROPERTIES:
        return 0;
    default:
        return value == message_defaults[field];
    }
}

static PyObject *message_by_its_constructor(PyObject *type, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    PyObject *made = NULL, *named = NULL, *unnamed = PyTuple_New(count);
    if (unnamed == NULL)
        return NULL;
    for (Py_ssize_t n = 0; n < count; n++) {
        Py_INCREF(args[n]);
        PyTuple_SET_ITEM(unnamed, n, args[n]);
    }
    if (names != NULL) {
        named = PyDict_New();
        if (named == NULL)
            goto out;
        for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(names); n++)
            if (PyDict_SetItem(named, PyTuple_GET_ITEM(names, n), args[count + n]))
                goto out;
    }
    made = PyType_Type.tp_call(type, unnamed, named);
out:
    Py_DECREF(unnamed);
    Py_XDECREF(named);
    return made;
}

static PyObject *message_new(PyObject *type, PyObject *const *args, size_t flags, PyObject *names)
{
    PyObject *given[FIELDS] = {NULL}, *made, *properties;
    Py_ssize_t count = PyVectorcall_NARGS(flags);
    if ((PyTypeObject *)type != message_type || count > FIELDS)
        return message_by_its_constructor(type, args, count, names);
    for (Py_ssize_t n = 0; n < count; n++)
        given[n] = args[n];
    for (Py_ssize_t n = 0; names != NULL && n < PyTuple_GET_SIZE(names); n++) {
        int field = 0;
        while (field < FIELDS && message_names[field] != PyTuple_GET_ITEM(names, n))
            field++;
        if (field == FIELDS || given[field] != NULL)
            return message_by_its_constructor(type, args, count, names);
        given[field] = args[count + n];
    }
    for (int field = 0; field < FIELDS; field++)
        if (given[field] == NULL ? field <= BODY : !is_plain(field, given[field]))
            return message_by_its_constructor(type, args, count, names);
    properties = PyDict_New();
    if (properties == NULL)
        return NULL;
    made = message_type->tp_alloc(message_type, 0);
    if (made == NULL) {
        Py_DECREF(properties);
        return NULL;
    }
    for (int field = 0; field < FIELDS; field++) {
        PyObject *value = given[field] != NULL ? given[field] : message_defaults[field];
        if (field == PROPERTIES) {
            *message_slot(made, field) = properties;
            continue;
        }
        Py_INCREF(value);
        *message_slot(made, field) = value;
    }
    return made;
}

/* The size of the body of a message that has nothing else and may join any batch; else -1. */
static Py_ssize_t messages_plain(PyObject *message)
{
    if (Py_TYPE(message) != message_type)
        return -1;
    for (int field = 0; field < FIELDS; field++)
        if (*message_slot(message, field) == NULL)
            return -1;
    for (int field = FLAG; field < FIELDS; field++)
        if (field != WAIT_STORED && *message_slot(message, field) != message_defaults[field] &&
            !(field == SHARDING_KEY || field == TRANSACTION_ID))
            return -1;
    PyObject *topic = *message_slot(message, TOPIC), *body = *message_slot(message, BODY);
    PyObject *tags = *message_slot(message, TAGS), *keys = *message_slot(message, KEYS);
    PyObject *sharding_key = *message_slot(message, SHARDING_KEY), *transaction = *message_slot(message, TRANSACTION_ID);
    PyObject *properties = *message_slot(message, PROPERTIES);
    if (!is_text(topic) || !PyBytes_CheckExact(body) || !is_text(tags) || PyUnicode_GET_LENGTH(tags) || !PyTuple_CheckExact(keys) ||
        PyTuple_GET_SIZE(keys) || !is_text(sharding_key) || PyUnicode_GET_LENGTH(sharding_key) || !is_text(transaction) ||
        PyUnicode_GET_LENGTH(transaction) || !PyDict_CheckExact(properties) || PyDict_GET_SIZE(properties))
        return -1;
    if (PyUnicode_READY(topic) || !PyUnicode_GET_LENGTH(topic) || PyUnicode_READ_CHAR(topic, 0) == '%')
        return -1; /* may be a retry topic */
    return PyBytes_GET_SIZE(body);
}

/* While a message with only a body is in flight, its properties are empty, so it cannot be part of a reference cycle: it is untracked, so
   that garbage collection does not visit it again and again. Its owner may fill them later, so it is tracked again then. */
static void messages_leave(PyObject *message) { PyObject_GC_UnTrack(message); }

static void messages_come_back(PyObject *message)
{
    if (Py_TYPE(message) == message_type && Py_REFCNT(message) > 1 && !PyObject_GC_IsTracked(message))
        PyObject_GC_Track(message);
}

/* Find the slots of messages, and make the class fast. */
static int messages_learn(PyObject *cls, PyObject *names)
{
    if (!PyType_Check(cls) || PyTuple_GET_SIZE(names) != FIELDS || (message_type != NULL && (PyObject *)message_type != cls)) {
        PyErr_SetString(PyExc_TypeError, "not the class of messages");
        return -1;
    }
    if (message_type != NULL)
        return 0;
    for (int field = 0; field < FIELDS; field++) {
        PyObject *name = PyTuple_GET_ITEM(names, field), *slot = PyObject_GetAttr(cls, name);
        if (slot == NULL)
            return -1;
        int good = Py_TYPE(slot) == &PyMemberDescr_Type && PyDescr_TYPE(slot) == (PyTypeObject *)cls &&
                   ((PyMemberDescrObject *)slot)->d_member->type == T_OBJECT_EX;
        if (good)
            message_at[field] = ((PyMemberDescrObject *)slot)->d_member->offset;
        Py_DECREF(slot);
        if (!good || !PyUnicode_CheckExact(name)) {
            PyErr_SetString(PyExc_TypeError, "the fields of messages must be slots");
            return -1;
        }
        Py_INCREF(name);
        PyUnicode_InternInPlace(&name);
        message_names[field] = name;
    }
    message_defaults[TAGS] = message_defaults[SHARDING_KEY] = message_defaults[TRANSACTION_ID] = PyUnicode_FromString("");
    message_defaults[KEYS] = PyTuple_New(0);
    message_defaults[FLAG] = message_defaults[DELAY_LEVEL] = PyLong_FromLong(0);
    message_defaults[WAIT_STORED] = Py_True;
    message_defaults[DELAY] = message_defaults[DELIVER_AT] = Py_None;
    if (message_defaults[TAGS] == NULL || message_defaults[KEYS] == NULL || message_defaults[FLAG] == NULL)
        return -1;
    Py_INCREF(cls);
    message_type = (PyTypeObject *)cls;
    message_type->tp_vectorcall = message_new;
    return 0;
}

#endif
