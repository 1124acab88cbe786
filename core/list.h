/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Intrusive doubly-linked list.
 *
 * A struct that can be on a list has a struct list member; the head is a
 * struct list of its own. A member that is on no list points at itself, so
 * list_remove() may be called twice. Nothing is allocated and nothing owned.
 * Not thread-safe: the lock that guards the head guards its members.
 *
 *	for (struct list *at = head.next; at != &head; at = at->next)
 *		use(container_of(at, struct entry, lru));
 *
 * A loop whose body removes what at is part of reads at->next before.
 */
#ifndef CORE_LIST_H
#define CORE_LIST_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>

struct list {
	struct list *prev;
	struct list *next;
};

/* For a head with static storage; list_init() is for all others. */
#define LIST_INIT(head)                                                        \
	{                                                                      \
		.prev = &(head), .next = &(head)                               \
	}

static inline void list_init(struct list *l)
{
	l->prev = l;
	l->next = l;
}

/* For a head: no members. For a member: on no list. */
static inline bool list_empty(const struct list *l)
{
	return l->next == l;
}

/* Puts member, which is on no list, behind at. at is a head or a member. */
static inline void list_add_after(struct list *at, struct list *member)
{
	assert(list_empty(member));
	member->prev = at;
	member->next = at->next;
	at->next->prev = member;
	at->next = member;
}

static inline void list_add_head(struct list *head, struct list *member)
{
	list_add_after(head, member);
}

static inline void list_add_tail(struct list *head, struct list *member)
{
	list_add_after(head->prev, member);
}

/* Takes member off its list, if it is on one. */
static inline void list_remove(struct list *member)
{
	member->prev->next = member->next;
	member->next->prev = member->prev;
	list_init(member);
}

/* The first or last member, or NULL. */
static inline struct list *list_first(const struct list *head)
{
	return list_empty(head) ? NULL : head->next;
}

static inline struct list *list_last(const struct list *head)
{
	return list_empty(head) ? NULL : head->prev;
}

/* Takes the first member off and returns it, or NULL. */
static inline struct list *list_take_first(struct list *head)
{
	struct list *first = list_first(head);

	if (first)
		list_remove(first);
	return first;
}

/* Moves member to the end of head's list, from whatever list it is on. */
static inline void list_move_tail(struct list *head, struct list *member)
{
	list_remove(member);
	list_add_tail(head, member);
}

#endif
