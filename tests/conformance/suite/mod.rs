//! The sentences of the contract.

pub(crate) mod endings;
pub(crate) mod ends;
pub(crate) mod hints;
pub(crate) mod interruptions;
pub(crate) mod leases;
pub(crate) mod mode_hints;
pub(crate) mod modes;
pub(crate) mod operators;
pub(crate) mod outcomes;
pub(crate) mod permits;
pub(crate) mod queue;
pub(crate) mod renewals;
pub(crate) mod tokens;

/// Holds a store to the contract: its name, its `Subject`, and the arguments of `tokio::test`. A
/// store that has no permits says so.
macro_rules! conformance {
    ($store:ident, $subject:ty, $args:tt) => {
        mod $store {
            $crate::suite::conformance!(@locks $subject, $args);
            $crate::suite::conformance!(@tests $subject, $args, permits:
                as_many_are_granted_as_there_are_permits,
                each_number_counts_for_the_attempt_that_names_it,
                permits_are_granted_in_order_of_arrival,
                one_call_takes_several_permits,
                one_call_takes_no_more_permits_than_there_are,
                the_release_of_an_expired_permit_is_not_ours,
                an_attempt_of_several_owners_has_one_place_in_the_queue,
                a_crashed_holders_permit_comes_back,
                an_attempt_ends_a_permit_and_takes_it,
                each_permit_is_renewed_alone,
                locks_and_permits_do_not_mix,
                locks_and_permits_do_not_wait_in_one_queue,
                free_permits_are_hinted_to_as_many_attempts,
                every_attempt_that_is_next_is_hinted_whatever_number_those_ahead_name,
                a_waiter_is_hinted_to_all_holders_but_its_own_instance,
                dead_attempts_are_passed_by_for_a_permit,
                an_attempt_that_skips_the_queue_takes_only_a_free_permit,
                a_forced_release_takes_all_permits,
                never_more_are_inside_than_there_are_permits
            );
        }
    };
    ($store:ident, $subject:ty, $args:tt, without permits) => {
        mod $store {
            $crate::suite::conformance!(@locks $subject, $args);
            $crate::suite::conformance!(@tests $subject, $args, permits:
                permits_are_refused_and_leave_nothing
            );
        }
    };
    (@locks $subject:ty, $args:tt) => {
            $crate::suite::conformance!(@tests $subject, $args, leases:
                a_free_key_is_granted,
                a_leased_key_is_held_for_every_other_owner,
                keys_are_independent_of_each_other,
                a_released_key_is_free,
                an_expired_lease_is_as_good_as_none,
                an_expired_lease_is_forgotten_without_being_asked_about,
                the_same_owner_is_granted_again_and_counted_anew,
                another_attempt_of_the_same_instance_is_another_owner,
                a_fingerprint_is_shown_as_it_was_stored,
                the_label_of_the_holder_is_shown,
                any_text_can_be_a_key,
                extreme_durations_are_taken
            );
            $crate::suite::conformance!(@tests $subject, $args, tokens:
                a_block_has_as_many_tokens_as_asked_for,
                tokens_never_pass_the_clock_whatever_is_asked,
                tokens_rise_over_every_end_of_a_lease,
                a_double_can_hold_every_token,
                the_fence_is_raised_and_never_lowered,
                a_fence_that_leaves_no_token_is_refused
            );
            $crate::suite::conformance!(@tests $subject, $args, queue:
                attempts_are_served_in_order_of_arrival,
                asking_again_keeps_the_place,
                a_free_key_is_for_the_head_of_the_queue_only,
                an_attempt_that_does_not_queue_leaves_nothing_behind,
                a_queued_attempt_that_asks_without_queueing_leaves_the_queue,
                an_attempt_that_skips_the_queue_takes_only_a_free_key,
                an_attempt_past_its_deadline_counts_as_gone,
                asking_again_refreshes_the_deadline,
                giving_up_leaves_the_queue,
                a_grant_and_a_renewal_tell_whether_others_wait,
                an_abandoned_queue_is_forgotten,
                held_tells_when_to_ask_again,
                heads_that_leave_a_free_key_untaken_are_passed_by,
                each_head_has_its_own_head_start,
                held_tells_when_the_head_start_is_over,
                a_head_start_begins_anew_when_another_had_the_key
            );
            $crate::suite::conformance!(@tests $subject, $args, renewals:
                a_renewal_prolongs,
                a_renewal_never_shortens,
                a_renewal_never_creates,
                a_renewal_of_a_former_owner_does_nothing,
                a_renewal_does_not_revive_a_record,
                a_batch_is_answered_in_its_order,
                tokens_come_only_when_asked_for
            );
            $crate::suite::conformance!(@tests $subject, $args, endings:
                a_release_by_a_former_owner_does_nothing,
                a_release_of_nothing_is_not_ours,
                a_record_takes_the_place_of_the_lease,
                a_record_outlives_the_lease_and_then_expires,
                a_repeated_record_is_freed_again_and_changes_nothing,
                a_record_of_another_owner_is_answered_with_not_ours,
                a_record_ends_the_attempts_that_find_it
            );
            $crate::suite::conformance!(@tests $subject, $args, ends:
                an_attempt_ends_an_exclusive_lease_and_takes_its_key,
                an_attempt_ends_one_of_several_readers,
                an_attempt_ends_a_place_in_the_queue,
                an_attempt_ends_a_lease_after_its_downgrade,
                an_attempt_that_ends_a_lease_comes_behind_those_queued,
                an_attempt_hints_to_the_next_as_a_release,
                an_attempt_that_ends_unknown_owners_is_an_attempt_like_any_other,
                an_attempt_does_not_end_a_record
            );
            $crate::suite::conformance!(@tests $subject, $args, hints:
                a_new_waiter_is_hinted_to_the_holder,
                a_release_is_hinted_to_the_head_of_the_queue,
                the_attempt_behind_the_head_is_hinted_as_next,
                a_question_about_an_expired_lease_is_hinted_to_the_head_of_the_queue,
                hints_arrive_from_listening_on,
                a_record_is_hinted_to_every_attempt_in_the_queue,
                a_record_is_hinted_to_a_long_queue_one_after_another,
                a_release_beside_a_record_is_hinted_to_nobody,
                giving_up_at_the_head_of_a_free_key_is_hinted_to_the_next,
                a_forced_release_is_hinted_to_the_head_of_the_queue,
                a_store_works_without_a_watcher
            );
            $crate::suite::conformance!(@tests $subject, $args, interruptions:
                an_interruption_of_the_hints_is_a_hint_itself
            );
            $crate::suite::conformance!(@tests $subject, $args, operators:
                inspecting_tells_all_and_changes_nothing,
                a_forced_release_takes_the_key_from_its_holder,
                a_forced_release_removes_a_record,
                a_forced_release_takes_only_what_is_expected,
                a_ping_is_answered_and_changes_nothing,
                keys_with_a_lease_a_record_or_a_queue_are_listed,
                every_character_of_a_prefix_stands_for_itself,
                pages_together_have_all_keys,
                a_cursor_of_another_store_is_refused
            );
            $crate::suite::conformance!(@tests $subject, $args, outcomes:
                a_crowd_is_never_inside_together,
                a_refused_call_has_no_effect,
                calls_of_unknown_outcome_are_ended_by_releases,
                a_release_in_doubt_of_an_answered_call_is_a_release
            );
            $crate::suite::conformance!(@tests $subject, $args, modes:
                readers_share_a_key_and_keep_a_writer_out,
                a_writer_keeps_readers_out,
                mixed_attempts_are_served_in_order_of_arrival,
                a_waiting_writer_is_not_overtaken_by_later_readers,
                a_reader_that_skips_the_queue_joins_the_readers,
                the_same_reader_is_granted_again,
                tokens_rise_from_readers_to_writers_and_back,
                each_reader_is_renewed_and_expires_alone,
                the_release_of_an_expired_reader_is_not_ours,
                a_renewal_prolongs_one_of_several_readers,
                expired_readers_are_forgotten_without_being_asked_about,
                a_writer_takes_over_when_the_last_reader_has_expired,
                a_release_in_another_mode_does_nothing_for_others,
                a_reader_that_gives_up_leaves_the_queue,
                dead_readers_at_the_head_are_passed_by,
                many_dead_readers_at_the_head_are_passed_by,
                a_dead_writer_at_the_head_is_passed_by_readers,
                a_writer_that_waits_for_readers_is_not_passed_by,
                a_downgraded_lease_is_shared_without_a_gap,
                a_downgrade_never_shortens,
                a_lease_with_a_fingerprint_is_not_downgraded,
                an_exclusive_lease_is_released_as_a_shared_one,
                a_downgraded_lease_is_known_in_its_earlier_mode,
                a_release_in_the_earlier_mode_is_hinted_to_the_next,
                a_shared_lease_does_not_end_with_a_record,
                a_downgrade_of_nothing_is_not_ours,
                inspecting_tells_all_holders_and_their_modes,
                a_forced_release_takes_the_key_from_all_readers,
                readers_and_writers_are_never_inside_together
            );
            $crate::suite::conformance!(@tests $subject, $args, mode_hints:
                all_readers_that_are_next_are_hinted_and_the_writer_behind_them,
                the_readers_of_a_long_queue_are_hinted_one_after_another,
                the_last_reader_is_hinted_to_the_writer,
                readers_behind_a_writer_that_gives_up_are_hinted,
                a_downgrade_is_hinted_to_the_readers_ahead_of_the_first_writer,
                a_waiter_is_hinted_to_all_readers_but_its_own_instance,
                only_attempts_of_other_instances_count_as_others
            );
    };
    // Where a subject takes long to start: all sentences of a topic on one, one after another.
    (@tests $subject:ty, together, $topic:ident: $($test:ident),+) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $topic() {
            let all = async {
                $(
                    println!("{}", stringify!($test));
                    $crate::suite::$topic::$test(<$subject as $crate::subject::Subject>::start().await).await;
                )+
            };
            <$subject>::within_one(all).await;
        }
    };
    (@tests $subject:ty, $args:tt, $topic:ident: $($test:ident),+) => {
        mod $topic {
            $(
                #[tokio::test $args]
                async fn $test() {
                    $crate::suite::$topic::$test(<$subject as $crate::subject::Subject>::start().await).await;
                }
            )+
        }
    };
}

pub(crate) use conformance;
